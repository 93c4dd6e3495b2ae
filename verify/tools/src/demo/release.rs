//! A release, deployed by the commands of `docs/deployment.md` with the AWS CLI alone.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use super::account::{account, root, tool};
use super::stack::Stack;

const PAGE: &str = include_str!("../../../../docs/deployment.md");

/// What the page's commands name, and what they name on this machine: the page says so too. The
/// emulator knows no metric math and no saved queries, and its table goes with it.
const PROCESSOR: (&str, [&str; 2]) = ("arm64", ["aarch64", "arm64"]);
const PARAMETERS: (&str, &str) = (
    "AlarmEmail=on-call@example.com",
    "DeletionProtection=false Alarms=false Dashboard=false",
);
/// The stack that the page's commands create.
const STACK: &str = "weirgate";

/// A stack that was deployed from a release, beside another one of the same account.
#[derive(Debug)]
pub struct Release<'a> {
    stack: &'a Stack,
    folder: PathBuf,
}

impl<'a> Release<'a> {
    /// Packages the functions that were built last, for the processor of this machine, and deploys
    /// them to the account of `stack`.
    ///
    /// # Errors
    /// If a command fails, or is no longer as expected.
    pub async fn deploy(stack: &'a Stack, progress: impl Fn(&str)) -> Result<Self, String> {
        let folder = stack.folder().join("dist");
        let release = Self { stack, folder };
        progress("packaging a release of the functions that were built");
        release.package().await?;
        progress("deploying the release with the AWS CLI");
        for block in ["deploy-release", "protect-release"] {
            release.run(&commands(block)?).await?;
        }
        Ok(release)
    }

    async fn package(&self) -> Result<(), String> {
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| root().join("target"), PathBuf::from);
        let mut command = tokio::process::Command::new("python3");
        command
            .arg(root().join("scripts/dist.py"))
            .args(["functions", &self.folder.display().to_string(), processor()])
            .arg(target.join("lambda"));
        output(command).await.map(|_| ())
    }

    /// Runs commands in the release's folder. Of the tools, only the AWS CLI is in their path.
    async fn run(&self, commands: &str) -> Result<String, String> {
        let aws = tool(&root(), ".venv/aws/bin/aws")?;
        let folder = aws.parent().unwrap_or(Path::new("."));
        let mut command = tokio::process::Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", commands])
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
            .env("HOME", &self.folder)
            .envs(account(&self.stack.endpoint));
        output(command).await
    }

    /// Calls one of the release's functions with an event of `events/`, and returns its answer.
    ///
    /// # Errors
    /// If the function is not there, or fails.
    pub async fn call(&self, function: &str, event: &str) -> Result<Value, String> {
        let event = root().join("events").join(event);
        let invoke = format!(
            "aws lambda invoke --function-name {STACK}-{function} --payload 'fileb://{}' answer.json",
            event.display()
        );
        let told = self.run(&invoke).await?;
        let read = std::fs::read_to_string(self.folder.join("answer.json"));
        let answer = read.map_err(|error| format!("{function} did not answer: {error}: {told}"))?;
        if told.contains("FunctionError") {
            return Err(format!("{function} failed: {told}{answer}"));
        }
        serde_json::from_str(&answer).map_err(|error| format!("{function}: {error}: {answer}"))
    }

    /// Returns whether a function runs what is in its zip.
    ///
    /// # Errors
    /// If the function or its zip is not there.
    pub async fn runs_its_zip(&self, function: &str) -> Result<bool, String> {
        let zip = format!("{function}-{}.zip", processor());
        let ask = format!(
            "aws lambda get-function-configuration --function-name {STACK}-{function} \
             --query CodeSha256 --output text | base64 --decode | od -An -v -tx1 | tr -d ' \\n'"
        );
        let (runs, sums) = (self.run(&ask).await?, self.run("cat SHA256SUMS").await?);
        let of_zip = |line: &str| line == format!("{runs}  {zip}");
        Ok(sums.lines().any(of_zip))
    }

    /// Returns the value of an output of the stack, as the AWS CLI prints it.
    ///
    /// # Errors
    /// If the stack is not there.
    pub async fn output(&self, name: &str) -> Result<String, String> {
        let ask = format!(
            "aws cloudformation describe-stacks --stack-name {STACK} --output text \
             --query 'Stacks[0].Outputs[?OutputKey==`{name}`].OutputValue'"
        );
        Ok(self.run(&ask).await?.trim().to_owned())
    }
}

/// The name that the template has for the processor of this machine.
fn processor() -> &'static str {
    if PROCESSOR.1.contains(&std::env::consts::ARCH) {
        PROCESSOR.0
    } else {
        std::env::consts::ARCH
    }
}

/// A block of the page, for this machine.
fn commands(block: &str) -> Result<String, String> {
    let text = PAGE
        .split_once(&format!("```sh {block}\n"))
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(text, _)| text)
        .ok_or_else(|| format!("docs/deployment.md has no block {block}"))?;
    if block != "deploy-release" {
        return Ok(text.to_owned());
    }
    let file = |processor| format!("--template-file template-{processor}.yaml");
    let changes = [
        (file(PROCESSOR.0), file(processor())),
        (PARAMETERS.0.to_owned(), PARAMETERS.1.to_owned()),
    ];
    changes
        .iter()
        .try_fold(text.to_owned(), |text, (page, here)| {
            if text.contains(page) {
                Ok(text.replace(page, here))
            } else {
                Err(format!(
                    "the block {block} of docs/deployment.md must contain {page}"
                ))
            }
        })
}

async fn output(mut command: tokio::process::Command) -> Result<String, String> {
    let output = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| format!("{:?} cannot be run: {error}", command.as_std()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!(
            "{:?}: {}\n{}{}",
            command.as_std(),
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_the_page_are_run_with_the_parameters_of_the_emulator() {
        let block = commands("deploy-release").unwrap();
        assert!(block.contains(PARAMETERS.1) && !block.contains(PARAMETERS.0));
    }
}
