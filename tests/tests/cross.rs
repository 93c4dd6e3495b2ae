//! What `sam build` makes for Lambda: for its processor, for its libc,
//! small, and alive. Run by `make cross`, which builds it.

use std::path::{Path, PathBuf};
use std::process::Command;

use weirgate_testkit::Dynamo;
use weirgate_testkit::lambda::{Invoked, REQUEST_ID, invoke};
use weirgate_testkit::server::serve;

/// The minor version of the glibc that Amazon Linux 2023 has: 2.34.
/// <https://docs.aws.amazon.com/linux/al2023/ug/compare-with-al2.html>
const GLIBC: u32 = 34;
/// A start loads it, so it is small: 2.5 MB as a zip has it.
const GZIPPED: usize = 2_500_000;
/// Memory in KiB of the smallest function. Under emulation it has the emulator too.
const MEMORY: u64 = 128 * 1024;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A function as `sam build` leaves it.
fn built(function: &str) -> PathBuf {
    let (first, rest) = function.split_at(1);
    let logical = first.to_uppercase() + rest;
    root().join(format!(".aws-sam/build/{logical}/bootstrap"))
}

/// The newest minor version of glibc 2 that a binary asks for.
fn glibc(binary: &[u8]) -> u32 {
    let name = b"GLIBC_2.";
    let asked = binary
        .windows(name.len())
        .enumerate()
        .filter(|(_, window)| window == name)
        .map(|(at, _)| {
            let digits = binary[at + name.len()..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit());
            digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
        });
    asked.max().expect("it asks for glibc")
}

async fn run(binary: &Path, event: &str) -> Invoked {
    let dynamo = Dynamo::new().await;
    let _table = dynamo.table().await;
    let mut command = Command::new("/usr/bin/qemu-aarch64");
    command.args(["-L", "/usr/aarch64-linux-gnu"]).arg(binary);
    let invoked = invoke(command, &serve(&dynamo), event).await;
    println!(
        "{}: start {:?} emulated, peak {} MiB",
        binary.display(),
        invoked.start,
        invoked.peak_kib / 1024
    );
    assert!(invoked.peak_kib <= MEMORY, "{invoked:?}");
    let line: serde_json::Value =
        serde_json::from_str(invoked.log.lines().last().expect("a line")).expect("JSON");
    assert_eq!(line["span"]["requestId"], REQUEST_ID, "{line}");
    invoked
}

#[test]
#[ignore = "needs the builds of `make cross`"]
fn the_default_build_is_of_lambdas_processor_and_libc_and_small() {
    for path in ["aggregator", "reconciler"].map(built) {
        let binary =
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // 64 bits, little endian, AArch64.
        assert_eq!(
            (&binary[..6], &binary[18..20]),
            (&b"\x7fELF\x02\x01"[..], &[183, 0][..]),
            "{}",
            path.display()
        );
        let newest = glibc(&binary);
        assert!(
            newest <= GLIBC,
            "{} asks for glibc 2.{newest}",
            path.display()
        );
        let gzipped = Command::new("gzip")
            .args(["-9", "-c"])
            .arg(&path)
            .output()
            .unwrap()
            .stdout
            .len();
        println!(
            "{}: glibc 2.{newest}, {} bytes, {gzipped} gzipped",
            path.display(),
            binary.len()
        );
        assert!(
            gzipped <= GZIPPED,
            "{} has {gzipped} bytes gzipped",
            path.display()
        );
    }
}

#[tokio::test]
#[ignore = "needs the builds of `make cross`"]
async fn the_aggregator_starts_and_answers_a_batch() {
    let event = include_str!("../../events/aggregator-modify.json");
    let invoked = run(&built("aggregator"), event).await;
    assert_eq!(invoked.answers[0], r#"{"batchItemFailures":[]}"#);
    let done = r#""message":"batch done","records":2"#;
    assert!(invoked.log.contains(done), "{}", invoked.log);
}

#[tokio::test]
#[ignore = "needs the builds of `make cross`"]
async fn the_reconciler_starts_and_answers_its_schedule() {
    let event = include_str!("../../events/reconciler-schedule.json");
    let invoked = run(&built("reconciler"), event).await;
    let answer: serde_json::Value = serde_json::from_str(&invoked.answers[0]).unwrap();
    assert_eq!(
        (&answer["buckets_seen"], &answer["errors"]),
        (&0.into(), &serde_json::json!([]))
    );
    let line: serde_json::Value =
        serde_json::from_str(invoked.log.lines().last().unwrap()).unwrap();
    assert_eq!(line["schedule_id"], "7d8c1f6e-2f4a-4c55-9a63-0b8e5f1d2c3a");
    assert!(line["late_ms"].as_i64().unwrap() > 0, "{line}");
}
