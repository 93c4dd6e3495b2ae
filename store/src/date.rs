//! Reads the date of every response.

use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use weirgate_shared::EpochMillis;

use crate::CorrectedClock;

/// Passes the date of every response to a [`CorrectedClock`], also of failures.
#[derive(Debug)]
pub(crate) struct DateInterceptor(pub(crate) CorrectedClock);

/// Local time at which a request was sent.
#[derive(Debug, Clone, Copy)]
struct Sent(EpochMillis);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

impl Intercept for DateInterceptor {
    fn name(&self) -> &'static str {
        "Dates"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        request: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        request.interceptor_state().store_put(Sent(self.0.local()));
        Ok(())
    }

    fn read_after_transmit(
        &self,
        answered: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        request: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let received = self.0.local();
        let date = answered.response().headers().get("date");
        let date = date.and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok());
        if let (Some(date), Some(Sent(sent))) = (date, request.load::<Sent>()) {
            self.0.observe(date.secs(), *sent, received);
        }
        Ok(())
    }
}
