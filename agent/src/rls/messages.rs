//! The messages of both services, with the fields that are used.
//!
//! Written here, because generated code for Envoy's whole interface is 89,000 lines, half a minute
//! of each build. The tests send the generated messages, and Envoy itself sends its own.

use std::collections::BTreeMap;

/// Longest message, 256 KiB: 100 descriptors with long values are less.
pub(super) const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// `envoy.service.ratelimit.v3.RateLimitRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// Domain of the rules.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What the request is.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Hits of the descriptors that have none of their own; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    /// Keys and values, in their order.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit instead of that of the rules.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// Hits of this descriptor; 0 takes nothing.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    /// Key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value: a string there. A header can have other bytes, and a request that is not decoded
    /// passes by Envoy's default.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride`
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RateLimitOverride {
    /// Rate.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// Unit, as [`Unit`].
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// Decision over all descriptors.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One per descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers of the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Body of the response, if it is denied.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// Metadata of the request in the proxy: the tokens that were taken.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// `google.protobuf.Struct`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    /// Values by name.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

/// `google.protobuf.Value`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    /// The value.
    #[prost(oneof = "value::Kind", tags = "2, 5")]
    pub kind: Option<value::Kind>,
}

/// Kinds of a [`Value`].
pub mod value {
    /// `google.protobuf.Value.kind`
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// A number.
        #[prost(double, tag = "2")]
        Number(f64),
        /// Values by name.
        #[prost(message, tag = "5")]
        Fields(super::Struct),
    }
}

/// `envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus`
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// Decision of this descriptor.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// Limit, if a rule has one.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// What is left, in tokens.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Time until the request fits, or the limit is full.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse.RateLimit`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RateLimit {
    /// Capacity, in tokens.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// Time in which as many come back, if it is one of these.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// Name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// `envoy.config.core.v3.HeaderValue`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    /// Name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `google.protobuf.Duration`
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// The rest in nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse.Code`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Never sent: Envoy lets such a request pass, whatever its failure mode is.
    Unknown = 0,
    /// Allowed.
    Ok = 1,
    /// Denied.
    OverLimit = 2,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit`, and that of an override without
/// the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// None of these.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// A week.
    Week = 7,
}

/// `kuadrant.service.ratelimit.v1.ReserveRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReserveRequest {
    /// Domain of the rules.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What the request is.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Estimated hits of each descriptor.
    #[prost(uint64, tag = "3")]
    pub amount: u64,
    /// How long they are held; without a commit they return then.
    #[prost(message, optional, tag = "4")]
    pub ttl: Option<Duration>,
}

/// `kuadrant.service.ratelimit.v1.ReserveResponse`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReserveResponse {
    /// Decision.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// What a commit must bring.
    #[prost(string, tag = "2")]
    pub reservation_id: String,
}

/// `kuadrant.service.ratelimit.v1.CommitRequest`
#[derive(Clone, PartialEq, prost::Message)]
pub struct CommitRequest {
    /// Domain of the rules.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What the request is.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// That of the reservation.
    #[prost(string, tag = "3")]
    pub reservation_id: String,
    /// Hits of each descriptor that were really used.
    #[prost(uint64, tag = "4")]
    pub actual_amount: u64,
}

/// `kuadrant.service.ratelimit.v1.CommitResponse`
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CommitResponse {
    /// Whether the reservation was still held.
    #[prost(bool, tag = "1")]
    pub reservation_released: bool,
}
