# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the documentation."""

project = "acstor"
copyright = "the acstor developers"
extensions = [
    "openstackdocstheme",
    "oslo_config.sphinxext",
    "oslo_config.sphinxconfiggen",
    "oslo_policy.sphinxpolicygen",
]
html_theme = "openstackdocs"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_show_copyright = False
openstackdocs_auto_name = False
openstackdocs_auto_version = False
version = release = ""
config_generator_config_file = [
    ("../../etc/acstor/config-generator/acstor-agent.conf", "_static/acstor-agent"),
    ("../../etc/acstor/config-generator/acstor-glance.conf", "_static/acstor-glance"),
    ("../../etc/acstor/config-generator/acstor-gateway.conf", "_static/acstor-gateway"),
    ("../../etc/acstor/config-generator/acstor-nova.conf", "_static/acstor-nova"),
    ("../../etc/acstor/config-generator/acstor-decision.conf", "_static/acstor-decision"),
    ("../../etc/acstor/config-generator/acstor-checkpoint.conf", "_static/acstor-checkpoint"),
]
sample_config_basename = "acstor"
policy_generator_config_file = "../../etc/acstor/policy-generator.conf"
sample_policy_basename = "_static/acstor-decision"
exclude_patterns: list[str] = []
