//! `forebay ls`: what lies under a prefix, as the object store lists it.

use crate::failure::{Failure, usage};
use crate::figures;
use crate::output::Out;
use clap::Args;
use forebay_client::args::AccessArgs;
use forebay_client::objects::Objects;
use forebay_proto::v1;

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Prefix to list, or an object
    uri: String,
    #[command(flatten)]
    access: AccessArgs,
    /// Everything below, not only what lies directly below
    #[arg(short, long)]
    recursive: bool,
    /// A JSON object a line
    #[arg(long)]
    json: bool,
}

impl Ls {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let objects = Objects::new(&self.access.access().map_err(usage)?);
        let mut request =
            v1::ListObjectsRequest { uri: self.uri, recursive: self.recursive, ..Default::default() };
        loop {
            let page = objects.list(&request).await?;
            for prefix in &page.prefixes {
                match self.json {
                    true => writeln!(out, "{}", serde_json::json!({ "prefix": prefix }))?,
                    false => writeln!(out, "{:>10}  {prefix}/", "")?,
                }
            }
            for object in &page.objects {
                match self.json {
                    true => writeln!(out, "{}", serde_json::json!(object))?,
                    false => writeln!(out, "{:>10}  {}", figures::bytes(object.size), object.uri)?,
                }
            }
            request.token = page.token;
            if request.token.is_empty() {
                return Ok(());
            }
        }
    }
}
