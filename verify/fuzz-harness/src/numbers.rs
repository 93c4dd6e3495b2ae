//! Numbers at the edges of their types, out of few bytes.

/// Bytes that are read front to back; there are as many zeros behind them as are asked for.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn one_in(&mut self, of: u8) -> bool {
        self.byte().is_multiple_of(of)
    }

    /// One of a few, or any.
    pub(crate) fn number(&mut self) -> i64 {
        /// A moment of 2026, where instants mostly are.
        const NOW: i64 = 1_795_195_341_000;
        const EDGES: [i64; 20] = [
            0,
            1,
            -1,
            2,
            999,
            1000,
            1001,
            60_000,
            NOW - 60_000,
            NOW - 1,
            NOW,
            NOW + 1,
            NOW + 60_000,
            NOW * 1000,
            1 << 53,
            1_000_000_000_000_000,
            i64::MIN,
            i64::MIN + 1,
            i64::MAX,
            i64::MAX - 1,
        ];
        match usize::from(self.byte()) {
            edge if edge < EDGES.len() * 10 => EDGES[edge / 10],
            near if near < 230 => {
                EDGES[near % EDGES.len()].saturating_add(i64::from(self.byte()) - 128)
            }
            _ => i64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// One from 0 on.
    pub(crate) fn amount(&mut self) -> i64 {
        self.number().checked_abs().unwrap_or(i64::MAX)
    }

    pub(crate) fn count(&mut self) -> u32 {
        const EDGES: [u32; 10] = [0, 1, 2, 3, 4, 63, 64, 1 << 31, u32::MAX - 1, u32::MAX];
        match usize::from(self.byte()) {
            edge if edge < EDGES.len() * 20 => EDGES[edge / 20],
            power => 1 << (power % 32),
        }
    }
}
