//! The standard gRPC health service: whether the node takes readers.

pub use tonic_health::server::HealthReporter;

use tonic_health::ServingStatus;

/// Says whether the node takes readers.
pub async fn set_serving(reporter: &HealthReporter, serves: bool) {
    let status = if serves { ServingStatus::Serving } else { ServingStatus::NotServing };
    reporter.set_service_status("", status).await;
}
