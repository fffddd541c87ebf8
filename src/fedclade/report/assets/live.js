// Live: ask for what has changed, and show it

async function poll() {
  try {
    const answer = await fetch(`changes?since=${page.version}`, { cache: "no-store" });
    const news = await answer.json();
    if (news.version !== page.version) {
      for (const [key, section] of Object.entries(news.sections)) {
        if (section) page.sections[key] = section;
        else delete page.sections[key];
      }
      Object.assign(page, { ...news, sections: page.sections });
      showStatus(page.state, page.status);
      showMethods();
      showRuns();
      for (const id of page.order) if (id in news.sections || `${reader.run}/${id}` in news.sections) show(id);
      showContents();
      showFound();
    } else if (byId("status").textContent !== page.status) showStatus(page.state, page.status);
  } catch {
    showStatus("stopped", `${page.status}; not watched any more`);
  }
  setTimeout(poll, page.pause);
}

open();
