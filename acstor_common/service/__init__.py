# SPDX-License-Identifier: Apache-2.0
"""What commands and daemons share: configuration, logs, signals, metrics."""
