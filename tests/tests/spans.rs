//! What tracing sees of an acquire. Alone in its process, because tracing remembers for all threads
//! whether there is a listener.

mod fixtures;

use std::sync::{Arc, Mutex};

use crate::fixtures::fleet::{Fleet, denied, granted, runtime};
use weirgate::Limit;

fn rpm() -> [Limit; 1] {
    [Limit::per_minute("rpm", 60).unwrap()]
}

/// Keeps the fields of spans.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span()
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let mut spans = self.0.lock().unwrap();
        spans.push(format!("{} {:?}", span.metadata().name(), span.values()));
        tracing::span::Id::from_u64(u64::try_from(spans.len()).unwrap())
    }
    fn record(&self, span: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        let at = usize::try_from(span.into_u64() - 1).unwrap();
        self.0.lock().unwrap()[at].push_str(&format!(" {values:?}"));
    }
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn an_acquire_is_a_span_with_its_outcome() {
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || {
        runtime().block_on(async {
            let limiter = Fleet::new().await.limiter().await;
            let _ = granted(&limiter, &rpm(), &[("rpm", 60)]).await;
            denied(&limiter, &rpm(), &[("rpm", 1)]).await;
        });
    });
    let spans: Vec<_> = spans
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|span| span.starts_with("acquire"))
        .cloned()
        .collect();
    assert_eq!(spans.len(), 2, "{spans:?}");
    for (span, outcome) in spans.iter().zip(["granted", "denied"]) {
        assert!(
            span.contains("e-1") && span.contains("gpt-4") && span.contains(outcome),
            "{span}"
        );
    }
}
