//! A line chart as SVG, for figures in `docs/`.

use std::fmt::Write as _;

/// A line.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Points, rising in x.
    pub points: Vec<(f64, f64)>,
}

const SIZE: (f64, f64) = (760.0, 420.0);
/// Left, top, right and bottom of the plot.
const PLOT: (f64, f64, f64, f64) = (60.0, 30.0, 530.0, 370.0);
/// Told apart by readers with colour blindness too (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];
const TICKS: usize = 5;

/// Draws lines over x in `[0, right]` and y from 0.
pub fn draw(title: &str, x_name: &str, y_name: &str, right: f64, lines: &[Line]) -> String {
    let top = lines.iter().flat_map(|l| &l.points).map(|p| p.1).fold(0.0, f64::max);
    let top = if top > 0.0 { 5.0 * (top / 5.0).ceil() } else { 1.0 };
    let at = |x: f64, y: f64| {
        (PLOT.0 + (PLOT.2 - PLOT.0) * x / right, PLOT.3 - (PLOT.3 - PLOT.1) * (y / top).clamp(0.0, 1.0))
    };
    let mut svg = String::new();
    let mut put = |line: std::fmt::Arguments<'_>| {
        // Writing to a string has no way to fail.
        let _ = writeln!(svg, "{line}");
    };
    put(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">",
        SIZE.0, SIZE.1
    ));
    put(format_args!("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"));
    put(format_args!("<text x=\"{}\" y=\"18\" font-size=\"14\">{title}</text>", PLOT.0));
    for tick in 0..=TICKS {
        let (x, y) = (right * tick as f64 / TICKS as f64, top * tick as f64 / TICKS as f64);
        let (left, height) = at(0.0, y);
        put(format_args!(
            "<path d=\"M{left} {height:.1}H{}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{y:.0}</text>",
            PLOT.2,
            left - 6.0,
            height + 4.0
        ));
        put(format_args!(
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{x:.2}</text>",
            at(x, 0.0).0,
            PLOT.3 + 16.0
        ));
    }
    put(format_args!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{x_name}</text>",
        f64::midpoint(PLOT.0, PLOT.2),
        PLOT.3 + 38.0
    ));
    put(format_args!(
        "<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{y_name}</text>",
        f64::midpoint(PLOT.1, PLOT.3)
    ));
    for (i, line) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points: Vec<(f64, f64)> = line.points.iter().map(|p| at(p.0, p.1)).collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        ));
        for (x, y) in &points {
            put(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"));
        }
        let height = PLOT.1 + 14.0 + 20.0 * i as f64;
        put(format_args!(
            "<path d=\"M{} {height}h18\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{}\" y=\"{}\">{}</text>",
            PLOT.2 + 14.0,
            PLOT.2 + 38.0,
            height + 4.0,
            line.name
        ));
    }
    put(format_args!("</svg>"));
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_in_the_plot() {
        let line = |name: &str, points: &[(f64, f64)]| Line { name: name.into(), points: points.to_vec() };
        let svg = draw("t", "x", "y", 1.0, &[line("a", &[(0.0, 0.0), (1.0, 10.0)]), line("b", &[])]);
        assert!(
            svg.contains("points=\"60.0,370.0 530.0,30.0\"") && svg.trim_end().ends_with("</svg>"),
            "{svg}"
        );
        assert!(draw("t", "x", "y", 1.0, &[]).contains("</svg>"));
    }
}
