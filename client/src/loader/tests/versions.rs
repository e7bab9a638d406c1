//! A dataset is opened only at a node that speaks a version of the protocol that this client speaks too.

use super::fake::Fleet;
use super::world::World;
use crate::access::Access;
use crate::dataset::Dataset;
use forebay_proto::protocol::ours;
use forebay_proto::v1::Protocol;
use forebay_proto::{Kind, v1};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_protocol_is_refused_with_the_advice() {
    let world = World::new(&[40]);
    let fleet = Fleet::start(&world, 1, None).await;
    let access = Access::endpoint(&fleet.addresses[0]).unwrap();
    let v1::Protocol { version, .. } = ours();
    let later = Protocol { version: version + 2, oldest: version + 1, release: "9.0.0".into() };
    let both = Protocol { oldest: version, ..later.clone() };
    for (speaks, told) in [
        (None, None),
        (Some(ours()), None),
        (Some(both), None),
        (Some(later), Some("(Forebay 9.0.0), this client versions")),
    ] {
        *fleet.nodes[0].conduct.speaks.lock() = speaks;
        match (Dataset::open(&access, &world.spec()).await, told) {
            (Ok(dataset), None) => assert_eq!(dataset.manifest.rows(), 40),
            (Err(e), Some(told)) => {
                assert_eq!(e.kind, Kind::Invalid);
                assert!(e.message.starts_with(&format!("the node at {} speaks ", fleet.addresses[0])), "{e}");
                let advice = "upgrade this client to a release that both know";
                assert!(e.message.contains(told) && e.message.contains(advice), "{e}");
            }
            (Ok(_), Some(told)) => panic!("opened, not refused: {told}"),
            (Err(e), None) => panic!("{e}"),
        }
    }
}
