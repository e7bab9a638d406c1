//! What this process shows to nodes that have a policy: a token, from a file.
//!
//! It is never an argument: those show in process lists.

use crate::environment::variable;
use forebay_dataset::TokenFile;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// The variable that names the file with this process's token.
pub const TOKEN_FILE_VARIABLE: &str = "FOREBAY_TOKEN_FILE";

/// A connection that shows who this process is.
pub type NodeChannel = InterceptedService<Channel, Credentials>;

/// What requests carry; nothing without a token.
#[derive(Debug, Clone, Default)]
pub struct Credentials(Option<Arc<TokenFile>>);

/// The file that was named, or the one of the environment: one for the whole process.
static OF_PROCESS: Mutex<Option<Credentials>> = Mutex::new(None);

/// Names the file with this process's token, for all nodes that it asks from now on.
pub fn use_token_file(path: impl Into<PathBuf>) {
    *OF_PROCESS.lock() = Some(Credentials(Some(Arc::new(TokenFile::new(path)))));
}

/// Shows no token to the nodes that this process asks from now on.
pub fn use_no_token() {
    *OF_PROCESS.lock() = Some(Credentials::default());
}

impl Credentials {
    /// Of this process: those of [`use_token_file`], or of the environment.
    pub fn of_process() -> Self {
        let of_environment =
            || Self(variable(TOKEN_FILE_VARIABLE).map(|path| Arc::new(TokenFile::new(path))));
        OF_PROCESS.lock().get_or_insert_with(of_environment).clone()
    }

    /// The value of the header `authorization`, if there is one. `Denied` if there should be one.
    pub(crate) fn bearer(&self) -> forebay_proto::Result<Option<Arc<str>>> {
        self.0.as_ref().map(|file| file.bearer()).transpose()
    }
}

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(bearer) = self.bearer()? {
            let value = MetadataValue::try_from(&*bearer);
            let value = value.map_err(|_| Status::permission_denied("the token fits into no header"))?;
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }
}
