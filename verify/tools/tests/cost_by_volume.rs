//! The program of `docs/guide/cost-by-volume.md`.

use std::process::{Command, Output};

use weirgate_tools::scaling::volume::{PROFILES, table};

fn program(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_cost_by_volume"));
    program
        .args(arguments)
        .output()
        .expect("the program starts")
}

#[test]
fn the_program_prints_a_row_for_each_profile_and_refuses_what_is_no_number() {
    for arguments in [&[][..], &["100000000"], &["100,000,000"]] {
        let output = program(arguments);
        let printed = String::from_utf8(output.stdout).expect("it prints text");
        assert!(output.status.success(), "{printed}");
        assert_eq!(printed.trim_end(), table(100_000_000).trim_end());
        assert_eq!(printed.lines().count(), 2 + PROFILES.len());
    }
    let refused = program(&["many"]);
    let error = String::from_utf8(refused.stderr).expect("it prints text");
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(error, "acquires a month must be 1 to 10^12, got \"many\"\n");
}
