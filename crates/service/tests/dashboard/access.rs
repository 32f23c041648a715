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

/// A script that returns the texts with too little contrast (WCAG 2.2, 1.4.3).
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
    const backgroundLuminance = (element) => {
        for (let ancestor = element; ancestor; ancestor = ancestor.parentElement) {
            const style = getComputedStyle(ancestor);
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
        const text = walker.currentNode.data.trim();
        if (text === '' || element.closest('.unseen, [hidden], noscript, script, svg') || !element.checkVisibility({ opacityProperty: true })) continue;
        const back = backgroundLuminance(element);
        if (back === null) continue;
        const style = getComputedStyle(element);
        const [front] = luminance(style.color);
        const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
        const isLarge = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
        if (contrast < (isLarge ? 3 : 4.5)) faint.push(`${contrast.toFixed(2)} ${text.slice(0, 60)} (${style.color})`);
    }
    return faint;";

/// A script that returns elements wider than the window, except elements in a scrolling element.
const TOO_WIDE: &str = "
    const root = document.scrollingElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const isCut = (element) => {
        for (let ancestor = element.parentElement; ancestor; ancestor = ancestor.parentElement) {
            if (getComputedStyle(ancestor).overflowX !== 'visible' && ancestor.getBoundingClientRect().right <= root.clientWidth + 1) return true;
        }
        return false;
    };
    return [...document.querySelectorAll('body *')].filter((element) => element.getBoundingClientRect().right > root.clientWidth + 1 && !isCut(element))
        .map((element) => element.outerHTML.slice(0, 160)).slice(0, 5).concat([`${root.scrollWidth} of ${root.clientWidth}`]);";

/// A script that returns controls that are too small to touch (WCAG 2.2, 2.5.8), except links within text.
const TOO_SMALL: &str = "
    return [...document.querySelectorAll('button, select, input, textarea, nav a, a.button')]
        .filter((element) => element.checkVisibility() && !element.classList.contains('link'))
        .filter((element) => { const box = element.getBoundingClientRect(); return box.width > 0 && (box.width < 24 || box.height < 24); })
        .map((element) => element.outerHTML.slice(0, 160));";

/// Checks each view, given with an element that it must contain: on a desktop and a phone, in light and dark mode.
#[track_caller]
pub fn every_view_is_accessible(browser: &Browser, views: &[(&str, &str)], url: impl Fn(&str) -> String) {
    let mut backgrounds = Vec::new();
    for (size, scheme) in [
        (DESKTOP, "light"),
        (PHONE, "dark"),
        (PHONE, "light"),
        (DESKTOP, "dark"),
    ] {
        browser.set_window(size, scheme);
        for (view, selector) in views {
            browser.navigate(&url(view));
            browser.wait(view, &format!("document.querySelector({selector:?})"));
            let context = format!("{view}, {} px, {scheme}", size.0);
            assert_eq!(
                browser.evaluate(TOO_WIDE),
                serde_json::json!([]),
                "{context}: wider than the window"
            );
            assert_eq!(
                browser.evaluate(FAINT),
                serde_json::json!([]),
                "{context}: too little contrast"
            );
            if size == PHONE {
                assert_eq!(
                    browser.evaluate(TOO_SMALL),
                    serde_json::json!([]),
                    "{context}: too small to touch"
                );
            }
            if size == DESKTOP && scheme == "light" {
                names_and_landmarks(browser, &context);
            }
        }
        backgrounds.push(browser.evaluate("return getComputedStyle(document.body).backgroundColor"));
    }
    assert_eq!(
        (&backgrounds[0], &backgrounds[1]),
        (&backgrounds[2], &backgrounds[3])
    );
    assert_ne!(
        backgrounds[0], backgrounds[1],
        "both color schemes have the same background"
    );
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
