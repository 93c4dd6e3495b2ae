//! The crate with one fault: what a server or client that is wrong in one thing would do.

use serde_json::{Map, Value, json};

use crate::on_crate::OnCrate;
use crate::scenario::Subject;

type Request = Map<String, Value>;

/// A fault, in requests or in answers.
pub struct Fault {
    pub name: &'static str,
    change: Change,
}

enum Change {
    /// A field of requests is ignored.
    Without(&'static str),
    Request(fn(&mut Request)),
    Answer(fn(&mut Value)),
}

/// The faults.
pub const FAULTS: [Fault; 27] = [
    without("adjust"),
    without("give_back"),
    without("take_more"),
    without("renew_ms"),
    without("end"),
    without("bucket"),
    without("need"),
    without("wait_ms"),
    without("lease_ms"),
    without("bypass"),
    without("on_unavailable"),
    without("limits"),
    request("every acquire bypasses", |request| {
        if request.contains_key("take") {
            request.insert("bypass".to_owned(), json!(true));
        }
    }),
    request("a rollback releases", |request| {
        request
            .entry("end")
            .and_modify(|end| *end = json!("release"));
    }),
    request("a release rolls back", |request| {
        request
            .entry("end")
            .and_modify(|end| *end = json!("roll_back"));
    }),
    request("all entities are one", |request| {
        request
            .entry("entity")
            .and_modify(|entity| *entity = json!("one"));
    }),
    request("all resources are one", |request| {
        let resource = request.entry("resource");
        resource.and_modify(|resource| *resource = json!("api"));
    }),
    request("only the first bucket counts", |request| {
        if let Some(Value::Array(buckets)) = request.get_mut("buckets") {
            buckets.truncate(1);
        }
    }),
    request("a range takes its least", |request| {
        for amount in request
            .get_mut("take")
            .and_then(Value::as_object_mut)
            .into_iter()
            .flatten()
        {
            if amount.1.is_object() {
                *amount.1 = amount.1["at_least"].clone();
            }
        }
    }),
    request("amounts are whole", |request| {
        for field in ["take", "adjust"] {
            let amounts = request.get_mut(field).and_then(Value::as_object_mut);
            for amount in amounts.into_iter().flatten() {
                if amount.1.is_f64() {
                    *amount.1 = json!(1);
                }
            }
        }
    }),
    answer("short limits are not named", |answer| {
        answer["short"] = json!([])
    }),
    answer("waived denials are not named", |answer| {
        answer["would_deny"] = json!([])
    }),
    answer("errors have no text", |answer| answer["text"] = json!("")),
    answer("there is never a lease", |answer| {
        answer["lease"] = json!(false)
    }),
    answer("every retry is at once", |answer| {
        answer["retry_after_ms"] = json!(-1)
    }),
    answer("no decision says that it was degraded", |answer| {
        answer["degraded"] = json!(false)
    }),
    answer("what has ended settles", |answer| {
        if answer["outcome"] == "lease_gone" {
            answer["outcome"] = json!("settled");
        }
    }),
];

const fn without(field: &'static str) -> Fault {
    let change = Change::Without(field);
    Fault {
        name: field,
        change,
    }
}

const fn request(name: &'static str, change: fn(&mut Request)) -> Fault {
    let change = Change::Request(change);
    Fault { name, change }
}

const fn answer(name: &'static str, change: fn(&mut Value)) -> Fault {
    let change = Change::Answer(change);
    Fault { name, change }
}

/// The crate with a fault.
pub struct Mutant<'a> {
    subject: OnCrate,
    fault: &'a Fault,
}

impl<'a> Mutant<'a> {
    pub const fn new(subject: OnCrate, fault: &'a Fault) -> Self {
        Self { subject, fault }
    }

    fn asked(&self, request: &Request) -> Request {
        let mut request = request.clone();
        match self.fault.change {
            Change::Without(field) => drop(request.remove(field)),
            Change::Request(change) => change(&mut request),
            Change::Answer(_) => {}
        }
        request
    }

    fn answered(&self, mut answer: Value) -> Value {
        if let Change::Answer(change) = self.fault.change {
            change(&mut answer);
        }
        answer
    }
}

impl Subject for Mutant<'_> {
    async fn acquire(&mut self, request: &Request) -> Value {
        let request = self.asked(request);
        let answer = self.subject.acquire(&request).await;
        self.answered(answer)
    }

    async fn settle(&mut self, request: &Request) -> Value {
        let request = self.asked(request);
        let answer = self.subject.settle(&request).await;
        self.answered(answer)
    }

    async fn peek(&mut self, request: &Request) -> Value {
        let request = self.asked(request);
        let answer = self.subject.peek(&request).await;
        self.answered(answer)
    }

    async fn restart(&mut self) {
        self.subject.restart().await;
    }
}
