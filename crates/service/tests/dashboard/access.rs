//! Accessibility: on a phone, in dark and light mode, by keyboard, with a screen reader.

use crate::browser::Browser;

/// ARIA roles of controls and landmarks, which must have names.
const NAMED: [&str; 14] = [
    "button",
    "link",
    "textbox",
    "searchbox",
    "combobox",
    "checkbox",
    "table",
    "grid",
    "gridcell",
    "region",
    "navigation",
    "search",
    "dialog",
    "image",
];
const DESKTOP: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (375, 740);

/// The lowest text contrast (WCAG 2.2, 1.4.3) in an element, with the text.
const FAINT: &str = "
    const luminance = (color) => {
        const canvas = (window.pot ??= new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true }));
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
        return [0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b), a];
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const style = getComputedStyle(at);
            const [light, alpha] = luminance(style.backgroundColor);
            if (alpha === 255) return light;
            if (style.backgroundImage !== 'none') return null;
        }
        return null;
    };
    const faint = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        const words = walker.currentNode.data.trim();
        if (words === '' || element.closest('.unseen, [hidden], noscript, script, svg') || !element.checkVisibility({ opacityProperty: true })) continue;
        const back = ground(element);
        if (back === null) continue;
        const style = getComputedStyle(element);
        const [front] = luminance(style.color);
        const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
        const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
        if (contrast < (isLarge ? 3 : 4.5)) faint.push(`${contrast.toFixed(2)} ${words.slice(0, 60)} (${style.color})`);
    }
    return faint;";

/// Elements wider than the window, except those that scroll by themselves.
const TOO_WIDE: &str = "
    const root = document.scrollingElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const isCut = (element) => {
        for (let at = element.parentElement; at; at = at.parentElement) {
            if (getComputedStyle(at).overflowX !== 'visible' && at.getBoundingClientRect().right <= root.clientWidth + 1) return true;
        }
        return false;
    };
    return [...document.querySelectorAll('body *')].filter((element) => element.getBoundingClientRect().right > root.clientWidth + 1 && !isCut(element))
        .map((element) => element.outerHTML.slice(0, 160)).slice(0, 5).concat([`${root.scrollWidth} of ${root.clientWidth}`]);";

/// Controls too small to touch: WCAG 2.2, 2.5.8, except links within text.
const TOO_SMALL: &str = "
    return [...document.querySelectorAll('button, select, input, textarea, nav a, a.button')]
        .filter((element) => element.checkVisibility() && !element.classList.contains('link'))
        .filter((element) => { const box = element.getBoundingClientRect(); return box.width > 0 && (box.width < 24 || box.height < 24); })
        .map((element) => element.outerHTML.slice(0, 160));";

/// Each view with an element that it must contain, on a desktop and a phone, in light and dark mode.
#[track_caller]
pub fn every_view_is_accessible(browser: &Browser, views: &[(&str, &str)], url: impl Fn(&str) -> String) {
    let mut grounds = Vec::new();
    for (size, scheme) in [
        (DESKTOP, "light"),
        (PHONE, "dark"),
        (PHONE, "light"),
        (DESKTOP, "dark"),
    ] {
        browser.set_window(size, scheme);
        for (view, there) in views {
            browser.navigate(&url(view));
            browser.wait(view, &format!("document.querySelector({there:?})"));
            let at = format!("{view}, {} px, {scheme}", size.0);
            assert_eq!(
                browser.evaluate(TOO_WIDE),
                serde_json::json!([]),
                "{at}: wider than the window"
            );
            assert_eq!(
                browser.evaluate(FAINT),
                serde_json::json!([]),
                "{at}: too faint to be read"
            );
            if size == PHONE {
                assert_eq!(
                    browser.evaluate(TOO_SMALL),
                    serde_json::json!([]),
                    "{at}: too small for a finger"
                );
            }
            if size == DESKTOP && scheme == "light" {
                names_and_landmarks(browser, &at);
            }
        }
        grounds.push(browser.evaluate("return getComputedStyle(document.body).backgroundColor"));
    }
    assert_eq!((&grounds[0], &grounds[1]), (&grounds[2], &grounds[3]));
    assert_ne!(grounds[0], grounds[1], "dark is not light");
}

/// The accessibility tree of the page: names of all controls, one main heading, landmarks, and a live region.
#[track_caller]
pub fn names_and_landmarks(browser: &Browser, at: &str) {
    let nodes = browser.accessibility();
    for (role, name) in &nodes {
        assert!(
            !NAMED.contains(&role.as_str()) || !name.is_empty(),
            "{at}: a {role} without a name"
        );
    }
    let count = |expected: &str| nodes.iter().filter(|(role, _)| role == expected).count();
    assert!(nodes.len() > 10, "{at}: {nodes:?}");
    if count("dialog") > 0 {
        // Content behind the dialog is inert.
        return;
    }
    assert_eq!((count("main"), count("banner")), (1, 1), "{at}");
    let headings = browser.evaluate("return [...document.querySelectorAll('h1, h2, h3')].filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))");
    let levels: Vec<u64> = headings
        .as_array()
        .unwrap()
        .iter()
        .map(|level| level.as_u64().unwrap())
        .collect();
    assert_eq!(
        levels.iter().filter(|level| **level == 1).count(),
        1,
        "{at}: {levels:?}"
    );
    assert!(
        levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
        "{at}: {levels:?}"
    );
    let language = browser.evaluate("return [document.documentElement.lang, document.title.length > 0, document.querySelectorAll('[aria-live=polite]').length]");
    assert_eq!(language, serde_json::json!(["en", true, 1]), "{at}");
    let twice = browser.evaluate("const ids = [...document.querySelectorAll('[id]')].map(({ id }) => id); return ids.filter((id, at) => ids.indexOf(id) !== at)");
    assert_eq!(twice, serde_json::json!([]), "{at}: duplicate ids");
}
