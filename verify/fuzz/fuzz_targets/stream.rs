#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weirgate_fuzz_harness::stream(bytes));
