//! `strftime_now`: the date in the form that a template asks for. Times are UTC.

use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The time `seconds` after the start of 1970 by C's `strftime` directives; unknown ones stay as they
/// are.
pub(super) fn format_date(pattern: &str, seconds: u64) -> String {
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let month_name = MONTHS[month as usize - 1];
    // 1 January 1970 was a Thursday.
    let weekday = WEEKDAYS[((days + 3) % 7) as usize];
    let mut text = String::new();
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let directive = characters.next();
        // `%-d` and the like leave out the leading zero.
        let (directive, padded) = match directive {
            Some('-') => (characters.next(), Padding::None),
            directive => (directive, Padding::Zeros),
        };
        let number = |text: &mut String, value: u64| match padded {
            Padding::Zeros => write!(text, "{value:02}"),
            Padding::None => write!(text, "{value}"),
        };
        let written = match directive {
            Some('Y') => write!(text, "{year}"),
            Some('y') => number(&mut text, year % 100),
            Some('m') => number(&mut text, month),
            Some('d') => number(&mut text, day),
            Some('H') => number(&mut text, hour),
            Some('I') => number(&mut text, (hour + 11) % 12 + 1),
            Some('M') => number(&mut text, minute),
            Some('S') => number(&mut text, second),
            Some('j') => write!(text, "{:03}", days - days_before_year(year) + 1),
            Some('B') => write!(text, "{month_name}"),
            Some('b' | 'h') => write!(text, "{}", &month_name[..3]),
            Some('A') => write!(text, "{weekday}"),
            Some('a') => write!(text, "{}", &weekday[..3]),
            Some('p') => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('F') => write!(text, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => write!(text, "UTC"),
            Some('z') => write!(text, "+0000"),
            Some('%') => write!(text, "%"),
            Some(other) => write!(text, "%{other}"),
            None => write!(text, "%"),
        };
        written.expect("writing to a String does not fail");
    }
    text
}

#[derive(Clone, Copy)]
enum Padding {
    Zeros,
    None,
}

/// Year, month (1 to 12) and day (1 to 31) of a day counted from the start of 1970, by the Gregorian
/// calendar: the year is guessed from its mean length, then corrected.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days * 400 / 146_097;
    while days_before_year(year) > days {
        year -= 1;
    }
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    let mut day = days - days_before_year(year);
    let mut month = 1;
    while day >= days_of_month(year, month) {
        day -= days_of_month(year, month);
        month += 1;
    }
    (year, month, day + 1)
}

/// Days from the start of 1970 to the start of `year`, which is 1970 or later.
fn days_before_year(year: u64) -> u64 {
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969)
}

fn days_of_month(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, seconds: u64, expected: &str) {
        assert_eq!(format_date(pattern, seconds), expected);
    }

    #[test]
    fn dates_are_right_over_leap_years_and_centuries() {
        check("%Y-%m-%d %H:%M:%S", 0, "1970-01-01 00:00:00");
        check("%d %B %Y, %A", 951_782_400, "29 February 2000, Tuesday");
        check("%d %b %Y %a %j", 1_735_603_200, "31 Dec 2024 Tue 366");
        check("%F %T", 4_107_542_400, "2100-03-01 00:00:00");
    }

    #[test]
    fn directives_pad_and_unknown_ones_stay() {
        check("%-d/%-m/%y %I %p %% %Q %", 45_296, "1/1/70 12 PM % %Q %");
    }
}
