//! A whole account on this machine: MiniStack, and the real `sam build` and `sam deploy` of the
//! unmodified template.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use super::account::{account, root, tool};
use super::emulator;

/// A deployed stack; stopped, with all its processes, when it is dropped.
#[derive(Debug)]
pub struct Stack {
    emulator: Child,
    scratch: PathBuf,
    /// Where every service of the account listens.
    pub endpoint: String,
    /// The stack's outputs.
    pub outputs: BTreeMap<String, String>,
}

impl Stack {
    /// Starts MiniStack on `port` (a free one if `None`), builds and deploys, and tells `progress`
    /// what it does.
    ///
    /// # Errors
    /// One line that says what is missing or failed, and what to do.
    pub async fn start(port: Option<u16>, progress: impl Fn(&str)) -> Result<Self, String> {
        let root = root();
        let ministack = tool(&root, ".venv/stack/bin/ministack")?;
        let sam = tool(&root, ".venv/sam/bin/sam")?;
        let port = emulator::free_port(port)?;
        let endpoint = format!("http://127.0.0.1:{port}");
        let scratch = std::env::temp_dir().join(format!("weirgate-demo-{}", std::process::id()));
        std::fs::create_dir_all(&scratch)
            .map_err(|error| format!("{} cannot be made: {error}", scratch.display()))?;

        progress(&format!("starting MiniStack on {endpoint}"));
        let emulator = emulator::start(&ministack, &scratch, port, &endpoint)?;
        let mut stack = Self {
            emulator,
            scratch,
            endpoint,
            outputs: BTreeMap::new(),
        };
        stack.wait_until_up(port).await?;
        progress("sam build (the first time compiles the functions, some minutes)");
        stack.sam(&sam, &["build", "--config-env", "local"]).await?;
        progress("sam deploy");
        stack
            .sam(&sam, &["deploy", "--config-env", "local"])
            .await?;
        stack.read_outputs(&sam, "weirgate-local").await?;
        Ok(stack)
    }

    /// The same from `functions`, a folder with both of them built, so in seconds. What `sam` reads
    /// is copied to the stack's folder, beside a `sam` whose build takes the functions as they are;
    /// the name of the stack is `weirgate`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_with(functions: &Path, progress: impl Fn(&str)) -> Result<Self, String> {
        let root = root();
        let ministack = tool(&root, ".venv/stack/bin/ministack")?;
        let sam = tool(&root, ".venv/sam/bin/sam")?;
        let port = emulator::free_port(None)?;
        let endpoint = format!("http://127.0.0.1:{port}");
        let scratch = std::env::temp_dir().join(format!("weirgate-drill-{}", std::process::id()));
        lay_out(&root, functions, &scratch, &sam)
            .map_err(|error| format!("{}: {error}", scratch.display()))?;
        let sam = scratch.join("bin/sam");

        progress(&format!("starting MiniStack on {endpoint}"));
        let emulator = emulator::start(&ministack, &scratch, port, &endpoint)?;
        let mut stack = Self {
            emulator,
            scratch,
            endpoint,
            outputs: BTreeMap::new(),
        };
        stack.wait_until_up(port).await?;
        progress("sam deploy");
        stack.sam_in(&sam, &stack.scratch, &["build"]).await?;
        stack
            .sam_in(
                &sam,
                &stack.scratch,
                &["deploy", "--stack-name", "weirgate"],
            )
            .await?;
        stack.read_outputs(&sam, "weirgate").await?;
        Ok(stack)
    }

    /// Deploys the template once more, as the stack `name` on the table with this stream, without
    /// another build. Returns its outputs.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(super) async fn deploy_beside(
        &self,
        name: &str,
        stream: &str,
    ) -> Result<BTreeMap<String, String>, String> {
        let sam = tool(&root(), ".venv/sam/bin/sam")?;
        let existing = format!("ExistingTableStreamArn={stream}");
        let beside = ["deploy", "--config-env", "local", "--stack-name", name];
        let overrides = [
            "--parameter-overrides",
            "Architecture=x86_64",
            "Alarms=false",
            "Dashboard=false",
            &existing,
        ];
        self.sam(&sam, &[&beside[..], &overrides].concat()).await?;
        let listed = self.sam(&sam, &listing(name)).await?;
        outputs(&listed)
    }

    /// Where the stack's files are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.scratch
    }

    /// What a program of the account's owner has in its environment.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let root = root();
        let bins = [
            self.scratch.join("bin"),
            root.join(".venv/aws/bin"),
            root.join(".venv/sam/bin"),
        ];
        let bins = bins.map(|folder| folder.display().to_string()).join(":");
        let path = format!("{bins}:{}", std::env::var("PATH").unwrap_or_default());
        let named = account(&self.endpoint).map(|(name, value)| (name.to_owned(), value));
        let own = [
            ("PATH", path),
            ("AWS_PAGER", String::new()),
            ("SAM_CLI_TELEMETRY", "0".to_owned()),
        ];
        named
            .into_iter()
            .chain(own.map(|(name, value)| (name.to_owned(), value)))
            .collect()
    }

    async fn read_outputs(&mut self, sam: &Path, name: &str) -> Result<(), String> {
        let listed = self.sam(sam, &listing(name)).await?;
        self.outputs = outputs(&listed)?;
        Ok(())
    }

    /// An output of the stack.
    ///
    /// # Errors
    /// If the template has no such output.
    pub fn output(&self, name: &str) -> Result<&str, String> {
        let value = self.outputs.get(name).map(String::as_str);
        value.ok_or_else(|| format!("the stack has no output {name}: {:?}", self.outputs))
    }

    /// What the functions have logged so far: their lines of JSON.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn logged(&self) -> Result<Vec<Value>, String> {
        let text = std::fs::read_to_string(self.log())
            .map_err(|error| format!("the log cannot be read: {error}"))?;
        let json = |line: &str| serde_json::from_str(line.get(line.find('{')?..)?).ok();
        Ok(text.lines().filter_map(json).collect())
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("ministack.log")
    }

    async fn wait_until_up(&mut self, port: u16) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.emulator.try_wait() {
                return Err(format!(
                    "MiniStack ended at once ({status}): {}",
                    tail(&self.log(), 5)
                ));
            }
            if emulator::is_up(port).await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(format!(
            "MiniStack did not answer within 30 s: {}",
            tail(&self.log(), 5)
        ))
    }

    async fn sam(&self, sam: &Path, arguments: &[&str]) -> Result<String, String> {
        self.sam_in(sam, &root(), arguments).await
    }

    async fn sam_in(
        &self,
        sam: &Path,
        folder: &Path,
        arguments: &[&str],
    ) -> Result<String, String> {
        let bin = sam.parent().map(Path::to_path_buf).unwrap_or_default();
        let path = format!(
            "{}:{}",
            bin.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let output = tokio::process::Command::new(sam)
            .args(arguments)
            .current_dir(folder)
            .env("PATH", path)
            // Plain cargo: the functions run on this machine.
            .env("CARGO_LAMBDA_COMPILER", "cargo")
            .env("SAM_CLI_TELEMETRY", "0")
            .envs(account(&self.endpoint))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| format!("{} cannot be run: {error}", sam.display()))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let said = text(&output.stderr);
        let last: Vec<_> = said.lines().rev().take(15).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("\n  ");
        Err(format!(
            "sam {} failed ({}):\n  {last}",
            arguments[0], output.status
        ))
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // The functions are in MiniStack's process group.
        let group = i32::try_from(self.emulator.id()).map(Pid::from_raw);
        if let Ok(group) = group {
            let _ = killpg(group, Signal::SIGTERM);
            let deadline = Instant::now() + Duration::from_secs(3);
            while Instant::now() < deadline && matches!(self.emulator.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = killpg(group, Signal::SIGKILL);
        }
        let _ = self.emulator.wait();
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

/// `sam`, except for its build, which uses the existing functions, and leaves out the alarm of metric
/// math, which the emulator refuses. Each build is deployed once: a deployment without a new build
/// deploys nothing.
const SAM: &str = r#"#!/usr/bin/env bash
set -euo pipefail
case $1 in
build)
  rm -rf .aws-sam && mkdir .aws-sam && cp -r built .aws-sam/build
  template=template.yaml
  while [ $# -gt 0 ]; do [ "$1" = --template-file ] && template=$2; shift; done
  sed -e 's|^      FunctionName: .*-\(.*\)$|&\n      CodeUri: \1|' -e '/^  TableThrottledAlarm:$/,/^$/d' \
    "$template" > .aws-sam/build/template.yaml ;;
deploy)
  [ -d .aws-sam ] || { echo "nothing has been built" >&2; exit 1; }
  SAM "$@" && rm -rf .aws-sam ;;
*) exec SAM "$@" ;;
esac
"#;

/// The arguments of `sam` that list the outputs of a stack.
fn listing(name: &str) -> [&str; 8] {
    let of = ["list", "stack-outputs", "--stack-name", name];
    let how = ["--region", "us-east-1", "--output", "json"];
    std::array::from_fn(|at| of.iter().chain(&how).nth(at).copied().unwrap_or_default())
}

/// What `sam` reads, for functions that are built already.
fn lay_out(root: &Path, functions: &Path, folder: &Path, sam: &Path) -> std::io::Result<()> {
    for name in ["aggregator", "archiver", "reconciler"] {
        let code = folder.join("built").join(name);
        std::fs::create_dir_all(&code)?;
        std::fs::copy(functions.join(name), code.join("bootstrap"))?;
    }
    std::fs::create_dir_all(folder.join("bin"))?;
    let own = folder.join("bin/sam");
    std::fs::write(&own, SAM.replace("SAM ", &format!("'{}' ", sam.display())))?;
    std::fs::set_permissions(&own, Permissions::from_mode(0o755))?;
    for name in ["template.yaml", "stack-policy.json"] {
        std::fs::copy(root.join(name), folder.join(name))?;
    }
    let config = std::fs::read_to_string(root.join("samconfig.toml"))?;
    let local = config
        .split_once("[local.deploy")
        .map_or(String::new(), |(_, local)| {
            local.replace("Alarms=false", "Alarms=true")
        });
    std::fs::write(
        folder.join("samconfig.toml"),
        format!(
            "version = 0.1\n[default.global.parameters]\nregion = \"us-east-1\"\n[default.deploy{local}"
        ),
    )?;
    std::fs::create_dir_all(folder.join("scripts"))?;
    std::fs::copy(
        root.join("scripts/restored-table.yaml"),
        folder.join("scripts/restored-table.yaml"),
    )?;
    Ok(())
}

fn outputs(listed: &str) -> Result<BTreeMap<String, String>, String> {
    let listed: Value = serde_json::from_str(listed)
        .map_err(|error| format!("sam listed no outputs: {error}: {listed}"))?;
    let pair = |output: &Value| {
        Some((
            output["OutputKey"].as_str()?.to_owned(),
            output["OutputValue"].as_str()?.to_owned(),
        ))
    };
    Ok(listed
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(pair)
        .collect())
}

fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let last: Vec<_> = text.lines().rev().take(lines).collect();
    last.into_iter().rev().collect::<Vec<_>>().join(" | ")
}
