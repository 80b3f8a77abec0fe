//! A plane through measured points by least squares: value = constant + pods × slope + series × slope.

pub struct Point {
    pub pods: f64,
    pub series: f64,
    pub value: f64,
}

pub struct Plane {
    constant: f64,
    pub per_pod: f64,
    pub per_series: f64,
}

impl Plane {
    /// Needs three points that do not lie on one line.
    pub fn through(points: &[Point]) -> Self {
        let row = |point: &Point| [1.0, point.pods, point.series];
        let mut equations = [[0.0; 4]; 3];
        for point in points {
            for (equation, factor) in equations.iter_mut().zip(row(point)) {
                for (cell, other) in equation.iter_mut().zip(row(point).into_iter().chain([point.value])) {
                    *cell += factor * other;
                }
            }
        }
        let [constant, per_pod, per_series] = solved(equations);
        Self { constant, per_pod, per_series }
    }

    pub fn at(&self, point: &Point) -> f64 {
        self.constant + self.per_pod * point.pods + self.per_series * point.series
    }

    /// How much of what differs between the points the plane explains; 1 is all.
    pub fn determination(&self, points: &[Point]) -> f64 {
        let mean = points.iter().map(|point| point.value).sum::<f64>() / points.len() as f64;
        let left: f64 = points.iter().map(|point| (point.value - self.at(point)).powi(2)).sum();
        let all: f64 = points.iter().map(|point| (point.value - mean).powi(2)).sum();
        1.0 - left / all
    }
}

/// Gauss and Jordan, with the largest pivot of each column.
fn solved(mut equations: [[f64; 4]; 3]) -> [f64; 3] {
    for column in 0..3 {
        let pivot = (column..3)
            .max_by(|&one, &other| equations[one][column].abs().total_cmp(&equations[other][column].abs()))
            .expect("three rows");
        equations.swap(column, pivot);
        let divisor = equations[column][column];
        equations[column].iter_mut().for_each(|cell| *cell /= divisor);
        let of_pivot = equations[column];
        for (number, equation) in equations.iter_mut().enumerate() {
            if number != column {
                let factor = equation[column];
                equation.iter_mut().zip(of_pivot).for_each(|(cell, own)| *cell -= factor * own);
            }
        }
    }
    equations.map(|equation| equation[3])
}
