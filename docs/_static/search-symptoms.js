// Sphinx's search lists the pages that contain every word, in no useful order. A person who pastes an error message, or describes
// a symptom, uses words that no page has. So list the pages that have most of the rare words; pages about symptoms come first.
(() => {
  if (typeof Search === "undefined") return;
  const ABOUT_SYMPTOMS = /^(how-to\/(troubleshooting|mistakes|why-not-running)|runbooks\/)/;
  const withAllWords = Search.performTermsSearch;
  Search.performTermsSearch = (words, excluded) => {
    const pages = new Map();
    let whole = 0;
    for (const word of words) {
      const having = withAllWords(new Set([word]), excluded);
      if (!having.length) continue;
      const rarity = Math.log(1 + Search._index.docnames.length / having.length);
      whole += rarity;
      for (const page of having) {
        const found = pages.get(page[0]) || { page, has: 0, inTitle: 0 };
        found.has += rarity;
        if (page[4] >= Scorer.title) found.inTitle += rarity;
        pages.set(page[0], found);
      }
    }
    return [...pages.values()]
      .filter(({ has }) => has > 0.6 * whole)
      .map(({ page, has, inTitle }) => {
        const share = (has + 0.3 * inTitle) / whole;
        return page.with(4, 20 * share * (ABOUT_SYMPTOMS.test(page[0]) ? 1.5 : 1));
      });
  };
})();
