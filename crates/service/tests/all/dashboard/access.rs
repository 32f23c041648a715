//! Accessibility: on a phone, in dark and light mode, by keyboard, with a screen reader.

use super::browser::Browser;

/// ARIA roles of controls and landmarks, which must have names.
const ROLES_WITH_REQUIRED_NAME: [&str; 14] = [
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
const LOW_CONTRAST_SCRIPT: &str = "
    const luminance = (color) => {
        const canvas = (window.contrastCanvas ??= new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true }));
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

/// A script that returns elements that extend beyond the window, except elements within a scrolling element.
const TOO_WIDE_SCRIPT: &str = "
    const root = document.scrollingElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const isClipped = (element) => {
        for (let ancestor = element.parentElement; ancestor; ancestor = ancestor.parentElement) {
            if (getComputedStyle(ancestor).overflowX !== 'visible' && ancestor.getBoundingClientRect().right <= root.clientWidth + 1) return true;
        }
        return false;
    };
    return [...document.querySelectorAll('body *')].filter((element) => element.getBoundingClientRect().right > root.clientWidth + 1 && !isClipped(element))
        .map((element) => element.outerHTML.slice(0, 160)).slice(0, 5).concat([`${root.scrollWidth} of ${root.clientWidth}`]);";

/// A script that returns controls that are too small to touch (WCAG 2.2, 2.5.8), except links within text.
const TOO_SMALL_SCRIPT: &str = "
    return [...document.querySelectorAll('button, select, input, textarea, nav a, a.button')]
        .filter((element) => element.checkVisibility() && !element.classList.contains('link'))
        .filter((element) => { const box = element.getBoundingClientRect(); return box.width > 0 && (box.width < 24 || box.height < 24); })
        .map((element) => element.outerHTML.slice(0, 160));";

/// Checks each view on a desktop and on a phone, in light mode and in dark mode. An item of `views` has the path of a view
/// and the selector of an element that the view must contain.
#[track_caller]
pub fn assert_every_view_is_accessible(
    browser: &Browser,
    views: &[(&str, &str)],
    url: impl Fn(&str) -> String,
) {
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
                browser.evaluate(TOO_WIDE_SCRIPT),
                serde_json::json!([]),
                "{context}: wider than the window"
            );
            assert_eq!(
                browser.evaluate(LOW_CONTRAST_SCRIPT),
                serde_json::json!([]),
                "{context}: too little contrast"
            );
            if size == PHONE {
                assert_eq!(
                    browser.evaluate(TOO_SMALL_SCRIPT),
                    serde_json::json!([]),
                    "{context}: too small to touch"
                );
            }
            if size == DESKTOP && scheme == "light" {
                check_names_and_landmarks(browser, &context);
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

/// Checks the page's accessibility tree: names of all controls, one main heading, landmarks, and a live region.
#[track_caller]
pub fn check_names_and_landmarks(browser: &Browser, context: &str) {
    let nodes = browser.accessibility();
    for (role, name) in &nodes {
        assert!(
            !ROLES_WITH_REQUIRED_NAME.contains(&role.as_str()) || !name.is_empty(),
            "{context}: a {role} without a name"
        );
    }
    let count = |expected: &str| nodes.iter().filter(|(role, _)| role == expected).count();
    assert!(nodes.len() > 10, "{context}: {nodes:?}");
    if count("dialog") > 0 {
        // Content behind the dialog is inert.
        return;
    }
    assert_eq!((count("main"), count("banner")), (1, 1), "{context}");
    let headings = browser.evaluate("return [...document.querySelectorAll('h1, h2, h3')].filter((heading) => heading.checkVisibility()).map((heading) => Number(heading.tagName[1]))");
    let levels: Vec<u64> = headings
        .as_array()
        .unwrap()
        .iter()
        .map(|level| level.as_u64().unwrap())
        .collect();
    assert_eq!(
        levels.iter().filter(|level| **level == 1).count(),
        1,
        "{context}: {levels:?}"
    );
    assert!(
        levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
        "{context}: {levels:?}"
    );
    let language = browser.evaluate("return [document.documentElement.lang, document.title.length > 0, document.querySelectorAll('[aria-live=polite]').length]");
    assert_eq!(language, serde_json::json!(["en", true, 1]), "{context}");
    let duplicate_ids = browser.evaluate("const ids = [...document.querySelectorAll('[id]')].map(({ id }) => id); return ids.filter((id, index) => ids.indexOf(id) !== index)");
    assert_eq!(duplicate_ids, serde_json::json!([]), "{context}: duplicate ids");
}
