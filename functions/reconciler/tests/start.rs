//! The binary's start: a missing variable is one line, and the end.

use std::process::Command;

fn start(variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reconciler"));
    let output =
        command.env_clear().envs(variables.iter().copied()).output().expect("the binary runs");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), String::from_utf8(output.stdout).expect("lines are text"))
}

#[test]
fn a_missing_variable_ends_the_start_with_one_line_that_names_it() {
    let (code, lines) = start(&[]);
    assert_eq!((code, lines.lines().count()), (Some(1), 1), "{lines}");
    let line: serde_json::Value = serde_json::from_str(&lines).expect("a line is JSON");
    assert_eq!(line["level"], "ERROR");
    assert!(line["timestamp"].is_string());
    let says = "TABLE_NAME must be the name of a DynamoDB table, got nothing; set the environment variable";
    assert!(line["message"].as_str().expect("it says why").ends_with(says), "{line}");
}

/// Without credentials no run can do anything: that is the end, not a connection that may come
/// back.
#[test]
fn a_start_without_credentials_ends_and_says_what_to_set() {
    let nowhere = [
        ("AWS_REGION", "eu-west-1"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("HOME", "/nonexistent"),
    ];
    let (code, lines) = start(&[&[("TABLE_NAME", "limits")], &nowhere[..]].concat());
    assert_eq!(code, Some(1), "{lines}");
    let last: serde_json::Value =
        serde_json::from_str(lines.lines().last().expect("a line")).expect("a line is JSON");
    let message = last["message"].as_str().expect("it says why");
    assert!(
        message.contains("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        "{last}"
    );
}
