//! Rows of usage as CSV (RFC 4180).

use weirgate::UsageRow;

use super::{cells, columns, limits};
use crate::instant;

/// Returns rows as CSV, with a header. Names never need quotes: no separator is allowed in them.
pub fn of(rows: &[UsageRow]) -> String {
    let limits = limits(rows.iter().map(|row| &row.usage));
    let mut header: Vec<String> =
        ["entity", "resource", "start", "end", "state"].map(str::to_owned).into();
    header.extend(columns(&limits));
    let mut csv = header.join(",") + "\r\n";
    for row in rows {
        let mut line = vec![
            row.entity.to_string(),
            row.resource.to_string(),
            instant::text(row.start),
            instant::text(row.end),
            row.state.to_string(),
        ];
        line.extend(cells(&row.usage, &limits));
        csv += &(line.join(",") + "\r\n");
    }
    csv
}
