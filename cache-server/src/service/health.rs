//! The standard gRPC health service: whether the node takes readers.

use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// What the health service says; clones of it say the same.
#[derive(Clone, Default)]
pub struct ServingState(HealthReporter);

impl ServingState {
    pub async fn set_serving(&self, serves: bool) {
        let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.0.set_service_status("", status).await;
    }

    /// Says from now on that the service of this name is there.
    pub async fn add<S: tonic::server::NamedService>(&self) {
        self.0.set_serving::<S>().await;
    }

    pub fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.0.clone()))
    }
}
