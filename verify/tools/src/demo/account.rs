//! The emulated account: its environment, its tools, and calls in its owner's name.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The SDK for Python. Each call is a service, an operation and its arguments; bodies are texts.
const CALLS: &str = r#"
import json, sys, boto3
plain = lambda value: value.read().decode() if hasattr(value, "read") else str(value)
answers = [getattr(boto3.client(service), operation)(**arguments) for service, operation, arguments in json.loads(sys.argv[1])]
print(json.dumps(answers, default=plain))
"#;

/// Makes calls, each a list of a service, an operation and its arguments. Returns the answers.
///
/// # Errors
/// If a call is refused.
pub(super) async fn call(endpoint: &str, calls: &Value) -> Result<Vec<Value>, String> {
    let python = tool(&root(), ".venv/stack/bin/python")?;
    let output = tokio::process::Command::new(python)
        .args(["-c", CALLS, &calls.to_string()])
        .envs(account(endpoint))
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| format!("Python cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// The account's environment.
pub(super) fn account(endpoint: &str) -> [(&'static str, String); 5] {
    [
        ("AWS_ENDPOINT_URL", endpoint.to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_DEFAULT_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "test".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
    ]
}

/// The workspace, two folders above this crate.
pub(super) fn root() -> PathBuf {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.nth(2).map(Path::to_path_buf).unwrap_or_default()
}

pub(super) fn tool(root: &Path, name: &str) -> Result<PathBuf, String> {
    let path = root.join(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{name} is missing: run `make tools`"))
    }
}
