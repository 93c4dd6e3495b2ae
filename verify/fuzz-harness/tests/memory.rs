//! No input asks for more memory than some times its size. Alone in its process, because the
//! peak is the process's.

use std::path::Path;

use peak_alloc::PeakAlloc;
use weirgate_fuzz_harness::ALL;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What a decoder needs for nothing: an SDK client is the most.
const BASE: usize = 4 << 20;
/// How often the input: a record of two bytes becomes a line that says what is wrong with it.
const TIMES: usize = 128;

fn peak_of(decode: fn(&[u8]), bytes: &[u8]) -> usize {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    decode(bytes);
    MEMORY.peak_usage().saturating_sub(before)
}

/// Inputs that say much in few bytes.
fn dense() -> Vec<(&'static str, Vec<u8>)> {
    let many = |unit: &str, times: usize| unit.repeat(times).into_bytes();
    let records = |record: &str| {
        format!("{{\"Records\":[{}{record}]}}", format!("{record},").repeat(200_000)).into_bytes()
    };
    let aliases = |wide: usize| {
        let line = |at: usize| {
            format!("a{at}: &a{at} [{}]\n", vec![format!("*a{}", at - 1); wide].join(","))
        };
        let first = format!("a0: &a0 [{}]\n", vec!["x"; wide].join(","));
        (1..12).fold(first, |text, at| text + &line(at)).into_bytes()
    };
    let limits: String = (0..5_000).map(|at| format!("\"b_l{at}_tk\":{{\"N\":\"1\"}},")).collect();
    vec![
        ("stream", records("0")),
        ("stream", records("{}")),
        ("stream", many("[", 100_000)),
        ("item", format!("{{{limits}\"rf\":{{\"N\":\"1\"}}}}").into_bytes()),
        ("item", many("{\"M\":", 100_000)),
        ("agent_request", many("[", 100_000)),
        ("agent_request", many("{\"a\":", 100_000)),
        ("agent_request", format!("{{\"entity\":[{}0]}}", "0,".repeat(100_000)).into_bytes()),
        ("limits_file", many("- ", 500_000)),
        ("limits_file", many("? ", 500_000)),
        ("limits_file", many("[", 500_000)),
        ("limits_file", many("- &a\n", 100_000)),
        ("limits_file", aliases(10)),
        ("limits_file", aliases(2)),
        ("limits_file", many("\n", 500_000)),
        ("answer", [b"200\n\n".to_vec(), many("{\"Responses\":", 60)].concat()),
        ("environment", many("9", 100_000)),
        (
            "environment",
            ["t 1 1 1 1 ".replace(' ', "\0").into_bytes(), many("x", 100_000)].concat(),
        ),
        ("failure_object", records("{}")),
        ("failure_object", many("{}", 50_000)),
        ("failure_object", many("[", 100_000)),
        ("key", many("1-2 ", 100_000)),
    ]
}

#[test]
fn no_input_asks_for_more_memory_than_some_times_its_size() {
    let decoder = |wanted: &str| ALL.iter().find(|(name, _)| *name == wanted).expect(wanted).1;
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut inputs = dense();
    for (name, _) in ALL {
        let entries = std::fs::read_dir(corpus.join(name)).unwrap();
        inputs.extend(entries.map(|entry| (name, std::fs::read(entry.unwrap().path()).unwrap())));
    }
    for (name, bytes) in inputs {
        let peak = peak_of(decoder(name), &bytes);
        let begin = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert!(
            peak <= BASE + TIMES * bytes.len(),
            "{name}: {peak} bytes for {} that begin {begin:?}",
            bytes.len()
        );
    }
}
