//! What is given twice is refused: each argument that can be repeated, and each option of every
//! command, as the help lists them.

use super::fixtures::{commands, weirgate};

/// A value of each argument that may be repeated, another one for the same name, and one that may
/// stand beside it.
const REPEATABLE: [(&[&str], [&str; 3]); 14] = [
    (&["limits", "set", "--system"], ["rpm=5/minute", "rpm=6/hour", "tpm=5/minute"]),
    (&["acquire", "e", "r"], ["rpm=1", "rpm=2", "tpm=1"]),
    (&["acquire", "e", "r", "x=1"], ["--limit=rpm=5/minute", "--limit=rpm=2", "--limit=tpm=2"]),
    (&["load", "e", "r", "--rate=1"], ["rpm=1", "rpm=2", "tpm=1"]),
    (
        &["load", "e", "r", "x=1", "--rate=1"],
        ["--limit=rpm=5/minute", "--limit=rpm=2", "--limit=tpm=2"],
    ),
    (&["peek", "e", "r"], ["rpm=1", "rpm=2", "tpm=1"]),
    (&["reset", "e", "r", "--yes"], ["rpm", "rpm=2", "tpm"]),
    (&["reset", "e", "r", "--yes"], ["rpm=1", "rpm=2", "tpm"]),
    (&["drain", "e", "r", "--yes"], ["rpm", "rpm", "tpm"]),
    (&["top-up", "e", "r"], ["rpm=1", "rpm=2", "tpm=1"]),
    (&["entities", "describe", "e"], ["--label=a=1", "--label=a=2", "--label=b=1"]),
    (&["entities", "describe", "e"], ["--remove-label=a", "--remove-label=a", "--remove-label=b"]),
    (
        &["page", "--metrics=http://h:1/m?job=b"],
        [
            "--metrics=http://h:1/m?job=a",
            "--metrics=http://h:1/m?job=a",
            "--metrics=http://h:1/m?job=c",
        ],
    ),
    (&["replay"], ["/tmp/a=1", "/tmp/a=1", "/tmp/a=2"]),
];

/// Without a table, so a command whose arguments are right asks for one.
const RIGHT: &str = "give --table NAME";

fn refused(arguments: &[&str], why: &str) {
    let run = weirgate(arguments);
    assert_eq!(run.code, Some(2), "{arguments:?}: {run:?}");
    assert!(run.stderr.contains(why), "{arguments:?}: {run:?}");
    assert_eq!(run.stderr.lines().count(), 1, "{arguments:?}: {run:?}");
}

#[test]
fn a_name_with_two_values_is_refused_wherever_names_have_values() {
    for (command, [value, other, beside]) in REPEATABLE {
        refused(&[command, &[value, beside]].concat(), RIGHT);
        for twice in [[value, other, beside], [value, beside, value], [beside, other, value]] {
            refused(&[command, &twice[..]].concat(), "is given twice");
        }
    }
    let both = ["entities", "describe", "e", "--label=a=1", "--remove-label=a"];
    refused(&both, "is to be set and to be removed");
    for limit in [
        "rpm=5/minute,burst=6,burst=7",
        "rpm=5/minute,mode=soft,mode=soft",
        "rpm=5/minute,burst=6,mode=soft,burst=6",
    ] {
        refused(&["limits", "set", "--system", limit], "is given twice");
        let option = format!("--limit={limit}");
        refused(&["acquire", "e", "r", "rpm=1", &option], "is given twice");
    }
}

#[test]
fn an_option_that_is_given_twice_is_refused_in_and_before_every_command() {
    let all = commands(&[]);
    assert!(all.len() > 30, "{all:?}");
    let (mut tried, global) = (0, weirgate("--help-global").stdout);
    for path in all {
        let path: Vec<_> = path.split(' ').collect();
        let help = weirgate([&path[..], &["--help"]].concat()).stdout + &global;
        let options = help.lines().filter_map(|line| {
            let option = line.trim_start().strip_prefix("--")?;
            let name = option.split([' ', '=']).next()?;
            // Those that may be repeated are above; help is none.
            let is_other = ["help", "help-global", "version", "limit", "label", "remove-label"]
                .contains(&name);
            (!is_other).then(|| (format!("--{name}"), option.contains('<')))
        });
        for (option, has_value) in options {
            let value: &[&str] = if has_value { &["1"] } else { &[] };
            let twice = [&[&option[..]], value, &[&option[..]], value].concat();
            let run = weirgate([&path[..], &twice].concat());
            assert_eq!(run.code, Some(2), "{path:?} {option}: {run:?}");
            tried += 1;
        }
    }
    assert!(tried > 300, "{tried}");
    for (option, value) in [
        ("--table", "t"),
        ("--namespace", "n"),
        ("--region", "r"),
        ("--profile", "p"),
        ("--endpoint-url", "http://127.0.0.1:1"),
        ("--principal", "p"),
        ("--timeout", "1s"),
        ("--color", "never"),
    ] {
        let twice = "cannot be used multiple times";
        refused(&[option, value, "switches", option, value], twice);
        let joined = format!("{option}={value}");
        refused(&[&joined, "limits", "list", option, value], twice);
        refused(&["limits", &joined, "list", option, value], twice);
    }
}
