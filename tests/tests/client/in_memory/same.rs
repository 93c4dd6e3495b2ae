//! The same steps on a table in memory and on the embedded DynamoDB: the same answers, and the same
//! items, attribute by attribute.

use proptest::prelude::*;

use super::step::{ENTITIES, LIMITS, RESOURCES, Step, Take};
use super::world::{Shown, World};
use weirgate_tests::fleet::{config, runtime};

fn take() -> impl Strategy<Value = Step> {
    let amounts = (
        prop::option::weighted(0.8, 0..15_i64),
        prop::option::weighted(0.5, 0..300_i64),
        prop::option::weighted(0.2, 1..4_i64),
    );
    let place = (0..2_usize, 0..ENTITIES.len(), 0..RESOURCES.len());
    let times = (
        prop::option::weighted(0.4, 1..40_u64),
        prop_oneof![2 => Just(0_u64), 1 => 1..10_u64],
    );
    let shape = (
        prop::option::weighted(0.1, 1..10_i64),
        prop::bool::weighted(0.6),
        prop::bool::weighted(0.2),
    );
    (place, amounts, times, shape).prop_map(|(place, amounts, times, shape)| {
        let ((process, entity, resource), (lease_s, wait_s)) = (place, times);
        let (least, has_limits, cascades) = shape;
        Step::Take(Take {
            process,
            entity,
            resource,
            amounts: amounts.into(),
            least,
            lease_s,
            wait_s,
            has_limits,
            cascades: has_limits && cascades,
        })
    })
}

fn step() -> impl Strategy<Value = Step> {
    let (entity, resource) = (0..ENTITIES.len(), 0..RESOURCES.len());
    prop_oneof![
        16 => take(),
        2 => (any::<usize>(), 0..LIMITS.len(), 0..400_i64)
            .prop_map(|(at, limit, to)| Step::Adjust(at, limit, to)),
        1 => (any::<usize>(), 1..60_u64).prop_map(|(at, seconds)| Step::Renew(at, seconds)),
        3 => any::<usize>().prop_map(Step::Release),
        1 => any::<usize>().prop_map(Step::RollBack),
        1 => any::<usize>().prop_map(Step::Drop),
        3 => (0..2_usize, entity.clone(), resource.clone())
            .prop_map(|(process, entity, resource)| Step::Peek(process, entity, resource)),
        3 => (0..4_usize, prop::option::weighted(0.8, 0..4_usize))
            .prop_map(|(level, config)| Step::Configure(level, config)),
        2 => (entity.clone(), prop::option::of(entity.clone()), any::<bool>())
            .prop_map(|(child, parent, cascades)| Step::Parent(child, parent, cascades)),
        1 => entity.clone().prop_map(Step::Forget),
        1 => (0..2_usize, prop::sample::select(vec![1_u32, 2, 4]))
            .prop_map(|(resource, shards)| Step::Shards(resource, shards)),
        1 => (entity, resource).prop_map(|(entity, resource)| Step::ReleaseLease(entity, resource)),
        2 => Just(Step::Reconcile),
        1 => (any::<usize>(), 0..LIMITS.len(), 1..9_i64)
            .prop_map(|(at, limit, tokens)| Step::TakeMore(at, limit, tokens)),
        1 => (any::<usize>(), 0..LIMITS.len(), 1..9_i64)
            .prop_map(|(at, limit, tokens)| Step::GiveBack(at, limit, tokens)),
        1 => (0..4_usize, prop::sample::select(vec![None, None, Some(true), Some(false)]))
            .prop_map(|(level, next)| Step::Switch(level, next)),
        1 => (0..RESOURCES.len(), 0..2_usize, prop::option::of(1..9_i64))
            .prop_map(|(resource, limit, tokens)| Step::Edit(resource, limit, tokens)),
        1 => (0..RESOURCES.len()).prop_map(Step::ApplyLimits),
        2 => (0..7_usize).prop_map(Step::List),
        5 => prop_oneof![0..1_000_u64, 0..15_000_u64].prop_map(Step::Pass),
    ]
}

type Told = Vec<(String, Vec<Shown>)>;

async fn told(mut world: World, steps: &[Step]) -> Told {
    let mut told = vec![];
    for step in steps {
        let answer = world.run(step).await;
        told.push((answer, world.items()));
    }
    world.end().await;
    told.push((String::new(), world.items()));
    told
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn a_table_in_memory_answers_as_dynamodb(steps in prop::collection::vec(step(), 1..40)) {
        let memory = runtime().block_on(async { told(World::in_memory().await, &steps).await });
        let embedded = runtime().block_on(async { told(World::embedded().await, &steps).await });
        for (at, (one, other)) in memory.iter().zip(&embedded).enumerate() {
            let step = steps.get(at);
            prop_assert_eq!(&one.0, &other.0, "answer to step {}, {:?}", at, step);
            prop_assert_eq!(&one.1, &other.1, "items after step {}, {:?}", at, step);
        }
    }
}
