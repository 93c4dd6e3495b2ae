//! Where the backend is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use weirgate_local::LocalBackend;
use weirgate_local::page::LivePage;

/// Where the backend is.
#[derive(Debug, Serialize)]
pub struct Started<'a> {
    pub endpoint_url: &'a str,
    pub page_url: String,
    pub table: &'a str,
    namespace: &'a str,
    data: Option<&'a PathBuf>,
    /// The environment of a caller.
    pub variables: BTreeMap<&'static str, &'a str>,
}

impl<'a> Started<'a> {
    pub fn of(backend: &'a LocalBackend, page: &LivePage) -> Self {
        let options = backend.options();
        Self {
            endpoint_url: backend.endpoint_url(),
            page_url: page.url(),
            table: &options.table,
            namespace: &options.namespace,
            data: options.data.as_ref(),
            variables: backend.variables().into_iter().collect(),
        }
    }

    /// Returns where the table is kept, for a sentence.
    pub fn place(&self) -> String {
        match self.data {
            Some(folder) => format!("in {}", folder.display()),
            None => "in memory".to_owned(),
        }
    }
}

/// Returns it as lines of a shell.
pub fn text(started: &Started<'_>, moved: &str) -> String {
    let Started { endpoint_url, page_url, table, variables, .. } = started;
    let place = started.place();
    let exports: String =
        variables.iter().map(|(name, value)| format!("export {name}={value}\n")).collect();
    format!(
        "# Table {table}, {place}, at {endpoint_url}. Ctrl-C stops it.\n\
         # Live page: {page_url}{moved}\n\
         # Callers need this environment:\n{exports}"
    )
}
