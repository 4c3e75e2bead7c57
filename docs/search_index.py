"""MkDocs hook: what docs/search.js searches, written as a script: a page that is opened as a file may load one.

MkDocs' own search fetches its index, which browsers allow to servers only. Its parser of pages is used here.
"""

import json

from jinja2 import Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.contrib.search.search_index import SearchIndex
from mkdocs.structure.files import File, Files

NAME = "search-index.js"


def on_env(env: Environment, config: MkDocsConfig, files: Files) -> None:
    """MkDocs: all pages are rendered, and none is written yet."""
    content = f"const searchIndex = {json.dumps(entries(files), ensure_ascii=False, indent=0)};\n"
    files.append(File.generated(config, NAME, content=content))


def entries(files: Files) -> list[dict[str, str]]:
    """A section each, pages in their order: title, title of its page, location from the site's root, and text."""
    found = []
    for page in (file.page for file in files.documentation_pages() if file.page):
        index = SearchIndex(indexing="full", prebuild_index=False)
        index.add_entry_from_context(page)
        whole, *sections = json.loads(index.generate_search_index())["docs"]  # the first is all the page's text again
        found += [{"page": whole["title"]} | section for section in sections]
    return found
