//! Numbers that stand for windows and sessions in items: [`Window::code`](crate::Window::code) has
//! their layout.

/// The kind of a session.
pub(crate) const SESSION: i64 = 6;

/// Returns the code of a kind with what belongs to it, below 2^52.
pub(crate) const fn of(kind: i64, rest: i64) -> i64 {
    -(kind << 52 | rest)
}

/// Returns a hash that no release changes: 32-bit FNV-1a.
pub(crate) fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}
