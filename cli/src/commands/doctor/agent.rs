//! What an agent knows of its vendors' limits: the table does not have it.

use std::time::Duration;

use weirgate::{ConfiguredRate, MilliTokens, VendorAdvice, VendorCount};
use weirgate_shared::parse_span;

use super::aws::read;
use super::finding::Finding;

const CHECK: &str = "vendor";

/// Returns a finding for each limit that vendors reported to the agent at a URL.
pub async fn findings(url: &str) -> Vec<Finding> {
    let metrics = format!("{}/metrics", url.trim_end_matches('/'));
    let text = match read(metrics.clone()).await {
        Ok(text) => text,
        Err(error) => {
            let found = format!("not checked: {metrics}: {} {}", error.code, error.message);
            let remedy = "give the URL of an agent that runs, without a token for its metrics";
            return vec![Finding::unknown(CHECK, found, remedy)];
        }
    };
    let all = advice(&text);
    if all.is_empty() {
        let found = format!("the agent at {url} has no report of a vendor's limit");
        let remedy = "report the vendor's answers: vendor in a settlement, or /v1/report";
        return vec![Finding::unknown(CHECK, found, remedy)];
    }
    all.iter().map(finding).collect()
}

fn finding(advice: &VendorAdvice) -> Finding {
    let (found, counts) = (advice.to_string(), advice.counts.name());
    match &advice.configured {
        _ if !advice.differs() => Finding::fine(CHECK, found),
        Some(ConfiguredRate { name, .. }) => {
            let remedy = format!("set {name} by limits set, or have the vendor's limit changed");
            Finding::advice(CHECK, found, remedy)
        }
        None => {
            let remedy =
                format!("to compare it, start the agent with --follow-vendor {counts}=LIMIT");
            Finding::unknown(CHECK, found, remedy)
        }
    }
}

/// Reads the limits of vendors, and those that follow them, in Prometheus' text format.
fn advice(metrics: &str) -> Vec<VendorAdvice> {
    let mut all: Vec<VendorAdvice> = vec![];
    for line in metrics.lines() {
        let Some((labels, value)) = line.rsplit_once("} ") else {
            continue;
        };
        // Names of resources and limits have no quotes.
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            rest.split('"').next()
        };
        let counts = label("counts").and_then(VendorCount::parse);
        let resource = label("{resource").and_then(|resource| resource.try_into().ok());
        let (Some(counts), Some(resource)) = (counts, resource) else {
            continue;
        };
        if labels.starts_with("weirgate_vendor_limit{") {
            all.extend(value.parse().ok().map(|limit| VendorAdvice {
                resource,
                counts,
                limit,
                configured: None,
            }));
        } else if labels.starts_with("weirgate_vendor_limit_configured{") {
            let of = all.iter_mut();
            let mut of = of.filter(|of| of.resource == resource && of.counts == counts);
            if let Some(of) = of.next() {
                of.configured = configured(label("limit"), label("period"), value);
            }
        }
    }
    all
}

fn configured(name: Option<&str>, period: Option<&str>, value: &str) -> Option<ConfiguredRate> {
    let period: Duration = parse_span(period?)?;
    Some(ConfiguredRate {
        name: name?.try_into().ok()?,
        tokens: serde_json::from_str::<MilliTokens>(value).ok()?,
        period,
    })
}
