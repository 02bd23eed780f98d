//! Whether a group's members share the next step, or one of them computes it alone.
//!
//! Members wait for one another hundreds of times in a step. Where each has a core of its own, that costs
//! a few percent; where other programs want the cores, a member that waits holds up the one it waits for.
//! So a group that loses most of its time that way lets one member compute alone for a while; one bad step
//! is but an interruption, and all try again at once. A step has the same bits either way.

/// Who computes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Team {
    /// Every member, each its share.
    All,
    /// The first member.
    One,
}

/// The share of their time that members may spend waiting before one computes alone.
const WAITED_SHARE_MAX: f64 = 0.5;

/// The most steps that one member computes alone before all try again.
const ALONE_STEPS_MAX: u32 = 64;

/// What is known of how well the members work together.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    alone_left: u32,
    /// How many steps are computed alone after the next bad one.
    alone_next: u32,
}

impl Pace {
    /// Who computes the next step.
    pub(crate) fn team(&mut self) -> Team {
        if self.alone_left == 0 {
            return Team::All;
        }
        self.alone_left -= 1;
        Team::One
    }

    /// All members computed a step; `waited_share` of their time went into waiting.
    pub(crate) fn met(&mut self, waited_share: f64) {
        if waited_share > WAITED_SHARE_MAX {
            return self.missed();
        }
        self.alone_next = 0;
    }

    /// The members missed each other.
    pub(crate) fn missed(&mut self) {
        self.alone_left = self.alone_next;
        self.alone_next = (self.alone_next * 2).clamp(1, ALONE_STEPS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone_steps(pace: &mut Pace) -> usize {
        std::iter::from_fn(|| (pace.team() == Team::One).then_some(())).count()
    }

    #[test]
    fn bad_steps_in_a_row_are_followed_by_more_and_more_steps_alone_and_a_good_one_ends_that() {
        let mut pace = Pace::default();
        assert_eq!(pace.team(), Team::All);
        let found: Vec<usize> = (0..9)
            .map(|step| {
                if step % 2 == 0 {
                    pace.missed()
                } else {
                    pace.met(0.9)
                }
                alone_steps(&mut pace)
            })
            .collect();
        assert_eq!(found, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        pace.met(0.2);
        assert_eq!(alone_steps(&mut pace), 0);
        pace.missed();
        assert_eq!(alone_steps(&mut pace), 0);
        pace.missed();
        assert_eq!(alone_steps(&mut pace), 1);
    }
}
