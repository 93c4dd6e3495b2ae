//! Configurations that are replaced only if nothing has changed since they were read.

use crate::fixtures::fleet::Fleet;
use crate::fixtures::stored::{entity, resource, rpm};
use weirgate::{Config, ConfigLevel, Entity, Error, RateLimiter};

async fn versions(limiter: &RateLimiter, levels: &[ConfigLevel]) -> Vec<i64> {
    let stored = limiter.read_configs(levels).await.unwrap();
    stored.iter().map(|stored| stored.version).collect()
}

#[tokio::test(start_paused = true)]
async fn a_configuration_is_replaced_only_at_the_version_that_was_read() {
    let fleet = Fleet::new().await;
    let (limiter, other) = (fleet.limiter().await, fleet.limiter().await);
    let levels = [
        ConfigLevel::System,
        ConfigLevel::Resource(resource("gpt-4")),
    ];
    let (more, less) = (Config::of([rpm(600)]), Config::of([rpm(60)]));
    let replaced = async |version, next| {
        let done = limiter.replace_config(&levels[0], version, next).await;
        (done.unwrap(), versions(&limiter, &levels).await)
    };
    assert_eq!(replaced(0, Some(&more)).await, (true, vec![1, 0]));
    assert_eq!(
        replaced(0, Some(&more)).await,
        (true, vec![1, 0]),
        "a repeated call finds its own change"
    );
    other.set_config(&levels[0], &less).await.unwrap();
    assert_eq!(replaced(1, Some(&more)).await, (false, vec![2, 0]));
    other.set_config(&levels[0], &more).await.unwrap();
    assert_eq!(
        replaced(1, Some(&more)).await,
        (false, vec![3, 0]),
        "equal, but by two changes of others"
    );
    assert_eq!(replaced(3, None).await, (true, vec![4, 0]));
    assert_eq!(limiter.config(&levels[0]).await.unwrap(), None);

    let twice = [ConfigLevel::System, ConfigLevel::System];
    let error = limiter.read_configs(&twice).await.unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(text) if text.contains("system is given twice")),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn entities_are_read_in_the_order_asked_for() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter().await;
    let child = Entity {
        id: entity("e-1"),
        parent: Some(entity("team")),
        cascades: true,
    };
    limiter.set_entity(&child).await.unwrap();
    let ids = ["none", "e-1", "none"].map(entity);
    let read = limiter.read_entities(&ids).await.unwrap();
    assert_eq!(read, [None, Some(child), None]);
}
