//! A bucket of any numbers, and every write that can be planned for it.

mod case;
mod reads;
mod writes;

pub(crate) use case::Case;

/// Makes a case out of few bytes, and plans every write.
pub fn plans(bytes: &[u8]) {
    every(&Case::from_bytes(bytes));
}

/// Plans every write, and computes what readers are told.
pub(crate) fn every(case: &Case) {
    writes::plan_writes(case);
    reads::evaluate(case);
    reads::copy_usage(case);
}
