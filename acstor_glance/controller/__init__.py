# SPDX-License-Identifier: Apache-2.0
"""The listener service, its reconcilers, and the checks that commands run."""
