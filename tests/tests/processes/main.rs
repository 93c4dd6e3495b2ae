//! Tests that need a process for themselves, or start others: spans, exporters, peak memory.

mod exporters;
mod memory;
mod spans;
