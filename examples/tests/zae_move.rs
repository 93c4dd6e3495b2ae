//! The move of `docs/guide/from-zae-limiter.md`, with zae-limiter itself on the same local database: its limits
//! are exported, converted and applied, and both decide alike. Run by `make guides`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use weirgate::{ConfigLevel, ConnectOptions, Limit, LimitsFileContents, RateLimiter};
use weirgate_local::{LocalBackend, Options};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a program to its end. Returns what it printed, and what it printed on standard error.
fn run(mut command: Command) -> (String, String) {
    let output = command.output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("it prints text");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{command:?}: {stdout}{stderr}");
    (stdout, stderr)
}

/// A script, in the environment that has zae-limiter.
fn python(backend: &LocalBackend, script: &str) -> Command {
    let mut command = Command::new(root().join(".venv/bench/bin/python"));
    command.arg(root().join(script)).envs(backend.variables());
    command.env("AWS_DEFAULT_REGION", "us-east-1");
    command.env("PYTHONPATH", root().join("clients/python/src"));
    command
}

/// An agent, which is killed at the end.
struct Agent(Child, String);

impl Agent {
    fn start(backend: &LocalBackend) -> Self {
        // target/debug/deps/zae_move: the agent is beside the programs.
        let this = std::env::current_exe().expect("this program has a path");
        let folder = this.ancestors().nth(2).expect("it is in a folder");
        let mut command = Command::new(folder.join("weirgate-agent"));
        command
            .args(["--listen", "127.0.0.1:0"])
            .envs(backend.variables());
        let mut process = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let output = process.stdout.take().expect("it has an output");
        let mut line = String::new();
        BufReader::new(output)
            .read_line(&mut line)
            .expect("it logs");
        let line: serde_json::Value = serde_json::from_str(&line).expect("a line is JSON");
        let address = line["address"].as_str().expect("it listens").to_owned();
        Self(process, address)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs zae-limiter in .venv/bench and the agent; run by `make guides`"]
async fn its_limits_are_taken_over_and_both_decide_alike() {
    let backend = LocalBackend::start(Options::default())
        .await
        .expect("the backend starts");
    let url = backend.endpoint_url().to_owned();
    let mut table = python(&backend, "examples/tests/zae_table.py");
    table.arg(&url);
    run(table);

    let mut export = python(&backend, "examples/zae_export.py");
    export.args(["zae-limits", "--endpoint-url", &url, "--parent", "team-a"]);
    let (manifest, commands) = run(export);
    assert_eq!(
        commands,
        "weirgate entities set user-1 --parent team-a --cascades\n"
    );

    let file = std::env::temp_dir().join(format!("weirgate-move-{}.yaml", std::process::id()));
    std::fs::write(&file, manifest).expect("it can be written");
    let mut convert = Command::new(env!("CARGO_BIN_EXE_from_zae_limiter"));
    convert.arg(&file);
    let (limits, left_out) = run(convert);
    assert_eq!(
        left_out,
        "left out: system.on_unavailable\n\
         left out: resources.gpt-4.monthly, a quota: reset_schedule\n"
    );
    std::fs::write(&file, limits).expect("it can be written");
    let contents = LimitsFileContents::read(&file).expect("it is a limits file");
    std::fs::remove_file(&file).expect("it is there");

    let tokens = Limit::per_minute("tpm", 100_000)
        .unwrap()
        .with_burst(150_000)
        .unwrap();
    let rpm = Limit::per_day("rpm", 1_000).unwrap();
    let gpt = || "gpt-4".try_into().unwrap();
    let expected = [
        (
            ConfigLevel::System,
            vec![Limit::per_minute("rpm", 60).unwrap()],
        ),
        (
            ConfigLevel::Resource(gpt()),
            vec![Limit::per_hour("rpm", 5).unwrap(), tokens.clone()],
        ),
        (
            ConfigLevel::EntityResource("team-a".try_into().unwrap(), gpt()),
            vec![rpm, tokens],
        ),
    ];
    let found = contents.configs.iter().map(|(level, config)| {
        let mut limits = config.limits.clone();
        limits.sort_by(|one, other| one.name().cmp(other.name()));
        (level.clone(), limits)
    });
    let found: Vec<_> = found.collect();
    assert_eq!(found, expected);

    let connection = ConnectOptions {
        local_endpoint: Some(url.clone()),
        ..ConnectOptions::default()
    };
    let limiter = RateLimiter::builder("weirgate")
        .connection(connection)
        .build()
        .await
        .unwrap();
    for (level, mut config) in contents.configs {
        config.is_shadow = true;
        limiter.set_config(&level, &config).await.unwrap();
    }
    let agent = Agent::start(&backend);
    let mut both = python(&backend, "examples/zae_side_by_side.py");
    both.args([
        "zae-limits",
        "user-2",
        "--endpoint-url",
        &url,
        "--calls",
        "8",
    ]);
    both.env("WEIRGATE_AGENT_URL", &agent.1);
    let (counts, _) = run(both);
    assert_eq!(
        counts,
        "zae-limiter: granted, Weirgate: granted: 5\nzae-limiter: denied, Weirgate: denied: 3\n"
    );
    drop(agent);
    backend.stop().await;
}
