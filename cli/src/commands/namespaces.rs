//! `weirgate namespaces`.

use clap::Args;

use super::list::PageArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Lists the namespaces of the table.
#[derive(Debug, Args)]
#[command(after_help = "Example: weirgate namespaces --table limits")]
pub struct Namespaces {
    #[command(flatten)]
    page: PageArgs,
}

impl Namespaces {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let limiter = context.limiter().await?;
        let row = |name: &String| [vec![name.clone()]];
        self.page
            .print(context, &["namespace"], row, async |page| {
                limiter.admin().namespaces(page).await
            })
            .await
    }
}
