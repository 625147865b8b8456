//! Which rank works on which sample of a batch, so that none waits for another.
//!
//! Samples are read somewhere, their *home*, and cost unlike amounts of work. A plan gives each sample to a rank such
//! that the greatest cost of a rank is small, then that few bytes move: a sample stays at home unless moving it helps.
//! Every rank plans for itself from the same numbers and must find the same plan, so costs are integers and ties are
//! broken by sample and rank. Planning is in four steps:
//!
//! 1. No plan can be better than the *bound*: the mean over ranks, or the dearest sample if that is more. The *goal* is
//!    a little above it (`slack`), because the last thousandth costs many bytes.
//! 2. Ranks above the goal give samples away, dearest first as far as they fit into the surplus: of samples that cost
//!    the square of their length, these take the fewest bytes along.
//! 3. What was given away goes, dearest first, to the rank with the least to do (largest first, Graham 1969), home if
//!    that does not exceed the goal.
//! 4. While a rank exceeds the goal, it exchanges a sample for a cheaper one, or for none, with a rank that has little
//!    to do.
//!
//! Where exchanges end above the goal, the plan is made again from scratch, wherever samples are read: largest first, and if
//! samples are not too many by differencing (`differ`); for few samples a search tries assignments (`search`). What is
//! reached then becomes the goal from home; and where home is as good, everything stays.
//!
//! The last pass over every plan (`home`) takes back what was moved in vain: lists go to the ranks that read most of
//! them (`names`), and samples go home, alone or for another, until none can.
//!
//! Then what ranks hold is cut into microbatches (`cut`). A limit of what a rank can hold (tokens,
//! bytes) is kept throughout; equal numbers of samples on all ranks are had by
//! exchanging only. Nothing is allocated once a [`Planner`] has seen its largest batch.

mod cost;
mod cut;
mod differ;
mod exchange;
mod fit;
mod home;
mod loads;
mod matching;
mod names;
mod pack;
mod plan;
mod planner;
mod search;

pub use cost::{CostModel, GroupCost, Overflow};
pub use fit::{Fit, Fitted};
pub use plan::Plan;
pub use planner::{Limit, PlanError, Planner, Problem, SLACK};
