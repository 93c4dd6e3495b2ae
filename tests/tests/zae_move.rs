//! The move of `docs/guide/from-zae-limiter.md`, with zae-limiter itself on the same local database. The blocks of
//! the page are run by the names of their fences. Run by `make guides`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use weirgate_tests::stored::set_config;

use weirgate::{
    Config, ConfigLevel, ConfigStatus, ConnectOptions, Every, Limit, LimitsFileContents,
    RateLimiter,
};
use weirgate_local::{LocalBackend, Options};

const PAGE: &str = include_str!("../../docs/guide/from-zae-limiter.md");

/// Entities with the longest id, whose keys fill more than a page of a query: 1 MB.
const ENTITIES: usize = 2_200;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the block of the page whose fence has these words.
fn block(words: &str) -> &'static str {
    let begin = format!("\n```{words}\n");
    let (_, rest) = PAGE.split_once(&*begin).expect("the page has the block");
    rest.split_once("\n```").expect("the block ends").0
}

/// Runs a program to its end. Returns what it printed, and what it printed on standard error.
fn run(mut command: Command) -> (String, String) {
    let output = command.output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("it prints text");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{command:?}: {stdout}{stderr}");
    (stdout, stderr)
}

/// The folder of the programs that cargo has built: this one is `deps/zae_move` in it.
fn programs() -> PathBuf {
    let this = std::env::current_exe().expect("this program has a path");
    this.ancestors()
        .nth(2)
        .expect("it is in a folder")
        .to_owned()
}

/// A checkout as the page expects it, and a local backend.
struct Place {
    backend: LocalBackend,
    folder: PathBuf,
}

impl Place {
    async fn start(name: &str) -> Self {
        let backend = LocalBackend::start(Options::default())
            .await
            .expect("the backend starts");
        let folder = format!("weirgate-move-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(folder.join("bin")).expect("a folder can be made");
        std::fs::create_dir_all(folder.join("target")).expect("a folder can be made");
        symlink(root().join("client"), folder.join("client")).expect("a link can be made");
        symlink(programs(), folder.join("target/debug")).expect("a link can be made");
        let place = Self { backend, folder };
        let python = root().join(".venv/bench/bin/python");
        place.program("python", &format!("exec {} \"$@\"", python.display()));
        // The programs are built already.
        place.program("cargo", "[ \"$1 $2 $3\" = 'build -p weirgate' ]");
        place
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.folder.join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("it can be written");
        let runs = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, runs).expect("it can be changed");
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// A command in this folder, with the programs that the page names.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").expect("there is a PATH");
        let [ours, cargo] = [self.path("bin"), programs()];
        let path = format!("{}:{}:{path}", ours.display(), cargo.display());
        command
            .current_dir(&self.folder)
            .envs(self.backend.variables());
        command
            .env("PATH", path)
            .env("AWS_DEFAULT_REGION", "us-east-1");
        command.env("PYTHONPATH", root().join("clients/python/src"));
        command
    }

    /// Runs lines of shell, up to the first that fails. Returns what they printed, as [`run`].
    fn shell(&self, lines: &str) -> (String, String) {
        let mut command = self.command("sh");
        command.args(["-ec", lines]);
        run(command)
    }

    /// Makes the table of zae-limiter.
    fn table(&self, more: &str) {
        let url = self.backend.endpoint_url();
        self.shell(&format!(
            "python client/examples/zae_limiter/zae_table.py {url} {more}"
        ));
    }

    /// Runs the loop of the page, for calls of a user to this agent. Returns the counts of decisions.
    fn both(&self, agent: &str, call: &str) -> String {
        std::fs::write(
            self.path("both.py"),
            include_str!("../../client/examples/zae_limiter/ask_both.py"),
        )
        .expect("it can be written");
        let line = format!("python client/examples/zae_limiter/zae_both.py both.py {call}");
        let agent = format!("export WEIRGATE_AGENT_URL={agent}\n");
        self.shell(&(agent + &line)).0
    }

    /// The namespace that the page fills.
    async fn limiter(&self) -> RateLimiter {
        let connection = ConnectOptions {
            local_endpoint: Some(self.backend.endpoint_url().to_owned()),
            ..ConnectOptions::default()
        };
        RateLimiter::builder("weirgate")
            .namespace("prod")
            .connection(connection)
            .build()
            .await
            .expect("it connects")
    }

    async fn stop(self) {
        self.backend.stop().await;
        std::fs::remove_dir_all(self.folder).expect("it can be removed");
    }
}

/// An agent, which is killed at the end.
struct Agent(Child, String);

impl Agent {
    fn start(place: &Place) -> Self {
        let mut command = place.command("weirgate-agent");
        command.args(["--listen", "127.0.0.1:0", "--namespace", "prod"]);
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

/// The levels that the table of `zae_table.py` becomes.
fn expected() -> BTreeMap<String, Config> {
    let per_minute = |tokens| Limit::per_minute("rpm", tokens).unwrap();
    let tokens = Limit::per_minute("tpm", 100_000)
        .unwrap()
        .with_burst(150_000)
        .unwrap();
    let disabled = |limits: Vec<Limit>| Config {
        status: ConfigStatus::Disabled,
        ..Config::of(limits)
    };
    let on = |entity: &str, resource: &str| {
        let (entity, resource) = (entity.try_into().unwrap(), resource.try_into().unwrap());
        ConfigLevel::EntityResource(entity, resource)
    };
    let entity = |entity: &str| ConfigLevel::Entity(entity.try_into().unwrap());
    let resource = |resource: &str| ConfigLevel::Resource(resource.try_into().unwrap());
    let hourly = Limit::per_hour("rpm", 5).unwrap();
    let daily = Limit::per_day("rpm", 1_000).unwrap();
    let monthly = Limit::quota("monthly", 5_000_000, Every::month()).unwrap();
    let levels = [
        (ConfigLevel::System, Config::of([per_minute(60)])),
        (
            resource("gpt-4"),
            Config::of([hourly, tokens.clone(), monthly]),
        ),
        (resource("legacy"), disabled(vec![])),
        (resource("old"), disabled(vec![per_minute(30)])),
        (on("team-a", "gpt-4"), Config::of([daily, tokens])),
        (entity("user-5"), Config::of([per_minute(7)])),
        // The resources disable it too.
        (on("user-5", "legacy"), disabled(vec![])),
        (on("user-5", "old"), disabled(vec![])),
        (on("user-6", "old"), disabled(vec![per_minute(8)])),
        // It is enabled, with the limits of the resource.
        (on("user-7", "old"), Config::of([per_minute(30)])),
        (entity("user-8"), disabled(vec![])),
        (on("user-8", "gpt-4"), disabled(vec![per_minute(9)])),
        (on("user-9", "gpt-4"), disabled(vec![])),
    ];
    levels.into_iter().map(sorted).collect()
}

/// A level by its name, with its limits in the order of their names.
fn sorted((level, mut config): (ConfigLevel, Config)) -> (String, Config) {
    config
        .limits
        .sort_by(|one, other| one.name().cmp(other.name()));
    (level.to_string(), config)
}

/// Takes over the limits and the parents, by the blocks of the page.
async fn take_over(place: &Place) {
    let (_, printed) = place.shell(block("sh take over"));
    let (commands, left_out): (Vec<_>, Vec<_>) = printed
        .lines()
        .partition(|line| line.starts_with("weirgate "));
    assert_eq!(
        commands,
        [
            "weirgate entities set user-1 --parent team-a --cascades",
            "weirgate entities set user-5 --parent team-b",
        ]
    );
    assert_eq!(
        left_out,
        [
            "left out: system.on_unavailable",
            "left out: resources.gpt-4.cascade",
            "left out: resources.internal.disabled: bypass",
        ]
    );
    let contents = LimitsFileContents::read(place.path("limits.yaml")).expect("a limits file");
    let found: BTreeMap<_, _> = contents.configs.into_iter().map(sorted).collect();
    assert_eq!(found, expected());

    place.shell(block("sh apply in shadow mode"));
    let namespace = "export WEIRGATE_NAMESPACE=prod\n".to_owned();
    place.shell(&(namespace + &commands.join("\n")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs zae-limiter in .venv/bench, the command line and the agent; run by `make guides`"]
async fn the_blocks_of_the_page_take_limits_over_and_both_decide_alike() {
    let place = Place::start("blocks").await;
    place.table("");
    take_over(&place).await;

    let limiter = place.limiter().await;
    let levels = LimitsFileContents::read(place.path("limits.yaml")).expect("a limits file");
    assert_eq!(levels.configs.len(), expected().len());
    for (level, _) in levels.configs {
        let found = limiter
            .admin()
            .config(&level)
            .await
            .unwrap()
            .expect("it is set");
        let (name, found) = sorted((level, found));
        let mut wanted = expected()[&name].clone();
        wanted.is_shadow = !wanted.limits.is_empty();
        assert_eq!(found, wanted, "{name}");
    }
    let user = "user-1".try_into().unwrap();
    let entity = limiter
        .admin()
        .entity(&user)
        .await
        .unwrap()
        .expect("it is set");
    assert_eq!(entity.parent, Some("team-a".try_into().unwrap()));
    assert!(entity.cascades);

    let agent = Agent::start(&place);
    assert_eq!(
        place.both(&agent.1, "user-2 8"),
        "zae-limiter: granted, Weirgate: granted: 5\nzae-limiter: denied, Weirgate: denied: 3\n"
    );
    drop(agent);
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs zae-limiter in .venv/bench, the command line and the agent; run by `make guides`"]
async fn weirgate_fails_no_call_while_zae_limiter_decides() {
    let place = Place::start("failures").await;
    place.table("");
    take_over(&place).await;
    let level = ConfigLevel::Entity("user-3".try_into().unwrap());
    let disabled = Config {
        status: ConfigStatus::Disabled,
        ..Config::default()
    };
    let limiter = place.limiter().await;
    set_config(&limiter, &level, &disabled).await;

    let agent = Agent::start(&place);
    assert_eq!(
        place.both(&agent.1, "user-3 1"),
        "zae-limiter: granted, Weirgate: denied: 1\n"
    );
    // A failure of the model takes nothing of either.
    assert_eq!(
        place.both(&agent.1, "user-4 6 --fail"),
        "left: 5\nzae-limiter: failed, Weirgate: rolled back: 6\n"
    );
    let stopped = agent.1.clone();
    drop(agent);
    let hung = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let hung = format!("http://{}", hung.local_addr().expect("it has an address"));
    // The limit is 5: the sixth is denied by zae-limiter.
    for (agent, user) in [(stopped, "user-10"), (hung, "user-11")] {
        assert_eq!(
            place.both(&agent, &format!("{user} 6")),
            "zae-limiter: granted, Weirgate: no decision: 5\n\
             zae-limiter: denied, Weirgate: no decision: 1\n",
            "{agent}"
        );
    }
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs zae-limiter in .venv/bench; run by `make guides`"]
async fn entities_and_children_of_all_pages_are_exported() {
    let place = Place::start("pages").await;
    place.table(&format!("--entities {ENTITIES}"));
    let (_, printed) = place.shell(block("sh take over"));
    let commands: BTreeSet<_> = printed.lines().map(str::to_owned).collect();
    let children = (0..5).map(|n| format!("weirgate entities set child-{n} --parent team-a"));
    assert_eq!(commands, children.collect());
    let contents = LimitsFileContents::read(place.path("limits.yaml")).expect("a limits file");
    assert_eq!(contents.configs.len(), ENTITIES);
    place.stop().await;
}
