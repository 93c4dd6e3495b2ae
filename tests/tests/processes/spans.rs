//! What tracing sees of an acquire. Alone in its process, because tracing remembers for all threads
//! whether there is a listener.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use weirgate::Limit;
use weirgate_testkit::Fault;
use weirgate_tests::fleet::{Fleet, ask, denied, granted, pass, runtime, secs};

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 60).unwrap()]
}

/// The name of a span, and its fields.
type Span = (&'static str, BTreeMap<String, String>);

/// Keeps the fields of spans.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Span>>>);

struct Fields<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span()
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let mut fields = BTreeMap::new();
        span.record(&mut Fields(&mut fields));
        let mut spans = self.0.lock().unwrap();
        spans.push((span.metadata().name(), fields));
        tracing::span::Id::from_u64(u64::try_from(spans.len()).unwrap())
    }
    fn record(&self, span: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        let at = usize::try_from(span.into_u64() - 1).unwrap();
        values.record(&mut Fields(&mut self.0.lock().unwrap()[at].1));
    }
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Returns the spans of acquires, with their fields.
fn spans_of(work: impl AsyncFnOnce()) -> Vec<BTreeMap<String, String>> {
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || runtime().block_on(work()));
    let spans = spans.0.lock().unwrap();
    let acquires = spans.iter().filter(|(name, _)| *name == "acquire");
    acquires.map(|(_, fields)| fields.clone()).collect()
}

/// The fields that every span has, and more.
fn fields(more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let all = [
        ("otel.name", "weirgate acquire"),
        ("otel.kind", "client"),
        ("weirgate.entity", "e-1"),
        ("weirgate.resource", "gpt-4"),
    ];
    let all = all.iter().chain(more);
    all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn an_acquire_is_a_span_by_opentelemetrys_names() {
    let spans = spans_of(async || {
        let (fleet, [limiter]) = Fleet::of().await;
        let _ = granted(&limiter, &rpm(), &[("rpm", 60)]).await;
        denied(&limiter, &rpm(), &[("rpm", 1)]).await;
        let error = ask(&limiter, &rpm(), &[("rpm", -1)]).send().await;
        error.expect_err("no amount is negative");
        fleet.fail(&[Fault::Forbidden]);
        pass(secs(60)).await;
        let error = ask(&limiter, &rpm(), &[("rpm", 1)]).send().await;
        error.expect_err("no permission");
    });
    let [granted, denied, invalid, refused] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(*granted, fields(&[("weirgate.outcome", "granted")]));
    assert_eq!(*denied, fields(&[("weirgate.outcome", "denied")]));
    for (span, error, text) in [
        (invalid, "invalid", "amount must be 0 to 10^12"),
        (refused, "access_denied", "not permitted"),
    ] {
        let mut span = span.clone();
        let description = span.remove("otel.status_description").unwrap_or_default();
        assert!(description.contains(text), "{description}");
        let status = ("otel.status_code", "ERROR");
        let outcome = ("weirgate.outcome", "error");
        assert_eq!(span, fields(&[outcome, status, ("error.type", error)]));
    }
}
