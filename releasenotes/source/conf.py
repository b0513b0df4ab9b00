# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the release notes."""

project = "acstor release notes"
extensions = ["openstackdocstheme", "reno.sphinxext"]
html_theme = "openstackdocs"
html_show_copyright = False
openstackdocs_auto_name = False
openstackdocs_auto_version = False
version = release = ""
