//! Fuzzes the decoder that the variable `DECODER` names.

#![no_main]

use std::sync::LazyLock;

use weirgate_fuzz_harness::{ALL, Decoder};

static DECODER: LazyLock<Decoder> = LazyLock::new(|| {
    let name = std::env::var("DECODER").unwrap_or_default();
    let known = ALL.into_iter().find(|(known, _)| *known == name);
    known.expect("DECODER names a folder of the corpus")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (DECODER.1)(bytes));
