//! A least-squares line, or plane, through measured points: value = constant + factor × slope + …

/// The factors of one point, and its value.
pub type LinePoint = (Vec<f64>, f64);

/// The constant, then a slope for each factor.
pub struct FittedLine(Vec<f64>);

impl FittedLine {
    /// Needs at least one point more than factors, and linearly independent factors.
    pub fn through(points: &[LinePoint]) -> Self {
        let unknowns = points[0].0.len() + 1;
        let mut equations = vec![vec![0.0; unknowns + 1]; unknowns];
        for (factors, value) in points {
            let terms = terms(factors);
            for (equation, term) in equations.iter_mut().zip(&terms) {
                for (cell, other) in equation.iter_mut().zip(terms.iter().chain([value])) {
                    *cell += term * other;
                }
            }
        }
        Self(solved(equations))
    }

    pub fn slopes(&self) -> &[f64] {
        &self.0[1..]
    }

    pub fn at(&self, factors: &[f64]) -> f64 {
        terms(factors).iter().zip(&self.0).map(|(term, slope)| term * slope).sum()
    }

    /// R²: the part of the variance that the line explains.
    pub fn determination(&self, points: &[LinePoint]) -> f64 {
        let mean = points.iter().map(|(_, value)| value).sum::<f64>() / points.len() as f64;
        let left: f64 = points.iter().map(|(factors, value)| (value - self.at(factors)).powi(2)).sum();
        let all: f64 = points.iter().map(|(_, value)| (value - mean).powi(2)).sum();
        1.0 - left / all
    }
}

fn terms(factors: &[f64]) -> Vec<f64> {
    [&[1.0], factors].concat()
}

/// Gauss-Jordan elimination with the largest pivot of each column.
fn solved(mut equations: Vec<Vec<f64>>) -> Vec<f64> {
    let unknowns = equations.len();
    for column in 0..unknowns {
        let size = |row: usize| equations[row][column].abs();
        let pivot = (column..unknowns).max_by(|&one, &other| size(one).total_cmp(&size(other))).expect("a row is left");
        equations.swap(column, pivot);
        let divisor = equations[column][column];
        equations[column].iter_mut().for_each(|cell| *cell /= divisor);
        let of_pivot = equations[column].clone();
        for (number, equation) in equations.iter_mut().enumerate() {
            if number != column {
                let factor = equation[column];
                equation.iter_mut().zip(&of_pivot).for_each(|(cell, own)| *cell -= factor * own);
            }
        }
    }
    equations.into_iter().filter_map(|equation| equation.last().copied()).collect()
}
