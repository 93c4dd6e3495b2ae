//! Bodies of the agent's HTTP API.

use weirgate_agent::json_api::decode;

/// Longest error, in characters: it shows the beginnings of a few names and values.
const MAX_ERROR: usize = 2_000;

/// Reads bytes as the body of each operation.
pub fn agent_request(bytes: &[u8]) {
    let (read, again) = (decode(bytes), decode(bytes));
    assert_eq!(read, again);
    for error in read.into_iter().filter_map(Result::err) {
        let length = error.to_string().chars().count();
        assert!((1..=MAX_ERROR).contains(&length), "{length}: {error}");
    }
}
