//! How attention takes a step's rows: by tiles of rows that follow each other in one sequence, whose keys and
//! values are read once, and by single rows.

/// The tiles of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tiles {
    /// The first row of each tile: first of those with several rows, then of those with one.
    pub(super) first_rows: Vec<u32>,
    /// How many tiles have several rows.
    pub(super) whole: usize,
}

impl Tiles {
    /// Tiles of `tile_rows` rows, at least 1, for lanes with these numbers of rows.
    pub(super) fn new(lanes: impl IntoIterator<Item = usize>, tile_rows: usize) -> Self {
        let (mut whole, mut single) = (Vec::new(), Vec::new());
        let mut from = 0;
        for rows in lanes {
            let rest = from + rows / tile_rows * tile_rows;
            whole.extend((from..rest).step_by(tile_rows).map(|row| row as u32));
            single.extend((rest..from + rows).map(|row| row as u32));
            from += rows;
        }
        // Later tiles see more of their sequence. The members of a group take one half each, so that both get
        // tiles from all of it.
        let second = whole.iter().copied().skip(1).step_by(2);
        let mut first_rows: Vec<u32> = whole.iter().copied().step_by(2).chain(second).collect();
        first_rows.append(&mut single);
        let whole = if tile_rows > 1 { whole.len() } else { 0 };
        Self { first_rows, whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_decode_step_has_single_rows_only() {
        assert_eq!(Tiles::new([1, 1, 1], 2), Tiles { first_rows: vec![0, 1, 2], whole: 0 });
    }

    #[test]
    fn the_rows_of_a_prompt_are_taken_by_tiles_and_early_and_late_ones_alternate() {
        assert_eq!(Tiles::new([1, 9, 1], 2), Tiles { first_rows: vec![1, 5, 3, 7, 0, 9, 10], whole: 4 });
    }

    #[test]
    fn rows_taken_one_by_one_alternate_too_and_are_no_tiles_of_several() {
        assert_eq!(Tiles::new([1, 4], 1), Tiles { first_rows: vec![0, 2, 4, 1, 3], whole: 0 });
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_tile_and_no_tile_has_rows_of_two_lanes(
            lanes in proptest::collection::vec(0usize..20, 0..6),
            tile_rows in 1usize..5,
        ) {
            let tiles = Tiles::new(lanes.iter().copied(), tile_rows);
            let lane_of: Vec<usize> =
                lanes.iter().enumerate().flat_map(|(lane, &rows)| vec![lane; rows]).collect();
            let mut seen = vec![0; lane_of.len()];
            for (index, &first) in tiles.first_rows.iter().enumerate() {
                let rows = if index < tiles.whole { tile_rows } else { 1 };
                for row in first as usize..first as usize + rows {
                    prop_assert_eq!(lane_of[row], lane_of[first as usize]);
                    seen[row] += 1;
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
        }
    }
}
