//! What the agent starts with: variables, files, and the secret of its callers.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::CommandFactory;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code as Answer;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use weirgate_agent::options::Options;

use crate::fixtures::{Client, File, command, database, temporary};

/// Longest time until a line of a log.
const BOUND: Duration = Duration::from_secs(30);

/// An agent whose log a test reads.
struct Logged {
    process: Child,
    lines: Receiver<String>,
}

impl Logged {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        // A line that no test reads any more is dropped.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
        });
        Self { process, lines }
    }

    /// Returns the next line of the log that has this message in it, and those before it.
    fn until(&self, message: &str) -> Vec<Value> {
        let (mut lines, end) = (vec![], Instant::now() + BOUND);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no {message:?} in {lines:?}"));
            let line: Value = serde_json::from_str(&line).unwrap();
            let is_last = line["message"].as_str().unwrap().contains(message);
            lines.push(line);
            if is_last {
                return lines;
            }
        }
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const AWS: [&str; 9] = [
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];

#[test]
fn an_empty_variable_is_one_that_is_not_set() {
    let options = Options::command();
    let names = options.get_arguments().filter_map(|arg| arg.get_env());
    let names = names.map(|name| name.to_str().unwrap());
    let mut names: Vec<_> = names.chain(AWS).chain(["WEIRGATE_AGENT_TOKEN"]).collect();
    assert!(names.len() > 25, "{names:?}");
    let unset = command(&[]).output().unwrap();
    let empty = command(&[]).env("WEIRGATE_TABLE", "").output().unwrap();
    assert_eq!((empty.status.code(), empty.stderr), (Some(2), unset.stderr));
    names.retain(|name| *name != "WEIRGATE_TABLE");
    let endpoint = database();
    for one in names.iter().map(Some).chain([None]) {
        let empty: Vec<_> = names
            .iter()
            .filter(|name| one.is_none_or(|one| one == *name))
            .collect();
        let socket = temporary("start");
        let arguments = [
            "--table",
            "weirgate",
            "--unix-socket",
            socket.to_str().unwrap(),
        ];
        let mut agent = command(&arguments);
        // From the environment, whichever variable of it is not empty.
        match one {
            Some(&"AWS_ENDPOINT_URL_DYNAMODB") => agent.env("AWS_ENDPOINT_URL", &endpoint),
            None => agent.args(["--endpoint-url", &endpoint, "--region", "us-east-1"]),
            _ => agent.env("AWS_ENDPOINT_URL_DYNAMODB", &endpoint),
        };
        if one == Some(&"AWS_REGION") {
            agent.env("AWS_DEFAULT_REGION", "us-east-1");
        }
        agent
            .env("AWS_ACCESS_KEY_ID", "id")
            .env("AWS_SECRET_ACCESS_KEY", "secret");
        agent.envs(empty.iter().map(|name| (name, "")));
        let agent = Logged::start(agent);
        agent.until("listening");
        let mut client = Client::to(UnixStream::connect(&socket).unwrap());
        let limits = json!([{"name": "rpm", "capacity_tokens": 9, "refill_tokens": 9, "refill_period_ms": 60_000}]);
        let take = json!({"entity": "e", "resource": "r", "limits": limits, "take": {"rpm": 0}});
        let answer = client.post("/v1/acquire", &take);
        assert_eq!(answer.status, 200, "{one:?} is empty: {answer:?}");
    }
}

/// A way in which a file is lost, and what the log says then.
type Loss = (&'static str, fn(&Path));

fn rules(limit: u32) -> String {
    format!(
        "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}]\n"
    )
}

fn limits(limit: u32) -> String {
    format!("weirgate: 1\nsystem: {{limits: {{rpm: {{per_day: {limit}}}}}}}\n")
}

/// An agent with files, of which no call asks.
fn with_files(folder: &Path) -> Logged {
    let rules = folder.join("rules");
    let limits = folder.join("limits.yaml");
    let mut agent = command(&[
        "--table",
        "weirgate",
        "--endpoint-url",
        "http://127.0.0.1:1",
    ]);
    agent.args([
        "--listen",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--log-level",
        "info",
    ]);
    agent
        .arg("--rules")
        .arg(rules)
        .arg("--limits-file")
        .arg(limits);
    Logged::start(agent)
}

#[test]
fn a_file_that_is_lost_or_broken_is_one_line_of_the_log_without_a_call() {
    let folder = temporary("files");
    let rule = folder.join("rules").join("d.yaml");
    std::fs::create_dir_all(folder.join("rules")).unwrap();
    let limit = folder.join("limits.yaml");
    std::fs::write(&rule, rules(1)).unwrap();
    std::fs::write(&limit, limits(1)).unwrap();
    let agent = with_files(&folder);
    agent.until("listening");
    let losses: [Loss; 4] = [
        ("cannot be read", |path| std::fs::remove_file(path).unwrap()),
        ("the file is empty", |path| {
            std::fs::write(path, "").unwrap()
        }),
        ("is unknown", |path| std::fs::write(path, "x: 1").unwrap()),
        ("cannot be read", |path| {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        }),
    ];
    for (number, (says, lose)) in (2..).zip(losses) {
        for (path, text, name) in [
            (&rule, rules(number), "rules"),
            (&limit, limits(number), "limits file"),
        ] {
            lose(path);
            let lines = agent.until(&format!("{name} rejected"));
            let line = lines.last().unwrap();
            assert_eq!(line["level"], "ERROR");
            let error = line["error"].as_str().unwrap();
            let is_folder = error.contains("must have a file that ends in .yaml");
            assert!(error.contains(says) || is_folder, "{error}");
            let _ = std::fs::remove_dir(path);
            std::fs::write(path, text).unwrap();
            let lines = agent.until(&format!("{name} reloaded"));
            let again = lines
                .iter()
                .filter(|line| line["level"] == "ERROR" && line["error"] == error);
            assert_eq!(again.count(), 0, "it is said once: {lines:?}");
        }
    }
    drop(agent);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_agent_without_rules_does_not_start_unless_it_is_told_to() {
    let folder = temporary("rules");
    std::fs::create_dir(&folder).unwrap();
    let (absent, blank) = (folder.join("absent"), folder.join("blank.txt"));
    std::fs::write(&blank, "\n").unwrap();
    for path in [&folder, &absent, &blank] {
        let arguments = ["--table", "weirgate", "--rules", path.to_str().unwrap()];
        let listen = [
            "--listen",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
            "--endpoint-url",
            "http://127.0.0.1:1",
        ];
        let mut refused = command(&[&arguments[..], &listen].concat());
        refused.stderr(Stdio::piped());
        let mut refused = Logged::start(refused);
        let line = refused.lines.recv_timeout(BOUND);
        assert_eq!(
            line,
            Err(RecvTimeoutError::Disconnected),
            "it does not start"
        );
        let mut error = String::new();
        let mut output = refused.process.stderr.take().unwrap();
        output.read_to_string(&mut error).unwrap();
        assert_eq!(refused.process.wait().unwrap().code(), Some(2), "{error}");
        assert!(
            error.contains("--rules") && error.lines().count() == 1,
            "{error}"
        );
        let mut allowed = command(&[&arguments[..], &listen].concat());
        allowed.env("WEIRGATE_AGENT_START_WITHOUT_RULES", "true");
        let lines = Logged::start(allowed).until("listening");
        assert!(
            lines
                .iter()
                .any(|line| line["message"] == "there are no rules yet"),
            "{lines:?}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Asks for the rules' one descriptor, with this secret.
async fn ask(channel: &Channel, secret: Option<&str>) -> Result<Answer, Status> {
    let entry = Entry {
        key: "k".into(),
        value: "v".into(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        ..RateLimitDescriptor::default()
    };
    let mut request = tonic::Request::new(RateLimitRequest {
        domain: "d".into(),
        descriptors: vec![descriptor],
        hits_addend: 1,
    });
    if let Some(secret) = secret {
        request
            .metadata_mut()
            .insert("x-weirgate-token", secret.parse().unwrap());
    }
    let answer = RateLimitServiceClient::new(channel.clone())
        .should_rate_limit(request)
        .await?;
    Ok(answer.into_inner().overall_code())
}

#[test]
fn calls_of_envoy_show_the_secret_and_health_does_not() {
    let secret = "0123456789abcdef";
    let file = File::new(&rules(100));
    let mut agent = command(&["--table", "weirgate", "--endpoint-url", &database()]);
    agent.args([
        "--listen",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--rules",
        file.path(),
    ]);
    agent.env("WEIRGATE_AGENT_TOKEN", secret);
    let agent = Logged::start(agent);
    let line = agent.until("listening").pop().unwrap();
    let line = match line["address"].as_str().unwrap().starts_with("grpc") {
        true => line,
        false => agent.until("listening").pop().unwrap(),
    };
    let address = line["address"]
        .as_str()
        .unwrap()
        .replace("grpc://", "http://");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let channel = Channel::from_shared(address)
            .unwrap()
            .connect()
            .await
            .unwrap();
        for wrong in [
            None,
            Some(""),
            Some("0"),
            Some("0123456789abcdeF"),
            Some("0123456789abcdef0"),
        ] {
            let refused = ask(&channel, wrong).await.unwrap_err();
            assert_eq!(
                refused.code(),
                Code::Unauthenticated,
                "{wrong:?}: {refused}"
            );
            assert!(refused.message().contains("X-Weirgate-Token"), "{refused}");
        }
        // The methods of the other service, and unknown ones.
        for path in [
            "kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit",
            "kuadrant.service.ratelimit.v1.RateLimitService/Report",
            "kuadrant.service.ratelimit.v1.RateLimitService/Reserve",
            "kuadrant.service.ratelimit.v1.RateLimitService/Commit",
            "envoy.service.ratelimit.v3.RateLimitService/Other",
        ] {
            let mut grpc = tonic::client::Grpc::new(channel.clone());
            grpc.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<RateLimitRequest, RateLimitRequest>::default();
            let path = format!("/{path}").parse().unwrap();
            let request = tonic::Request::new(RateLimitRequest::default());
            let refused = grpc.unary(request, path, codec).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
        }
        assert_eq!(ask(&channel, Some(secret)).await.unwrap(), Answer::Ok);
        let health = HealthClient::new(channel)
            .check(HealthCheckRequest::default())
            .await;
        assert!(health.is_ok(), "{health:?}");
    });
}
