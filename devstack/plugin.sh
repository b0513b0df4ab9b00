#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DevStack sources this file as: plugin.sh <mode> [phase], in the order in which it calls the
# functions below.  Everything here may be run twice: stack.sh after a failed stack.sh.

_acstor_services() {
    echo acstor-agent acstor-glance-listener acstor-decision acstor-api
}

# The options of keystoneauth with which acstor's user signs in, in a group of a file.
_acstor_sign_in() {
    local file=$1 group=$2
    iniset "$file" "$group" auth_type password
    iniset "$file" "$group" auth_url "$KEYSTONE_SERVICE_URI"
    iniset "$file" "$group" username "$ACSTOR_USER"
    iniset "$file" "$group" password "$SERVICE_PASSWORD"
    iniset "$file" "$group" project_name "$ACSTOR_PROJECT"
    iniset "$file" "$group" user_domain_name "$SERVICE_DOMAIN_NAME"
    iniset "$file" "$group" project_domain_name "$SERVICE_DOMAIN_NAME"
}

acstor_install() {
    local extras=()
    is_service_enabled acstor-agent && extras+=(agent nova)
    is_service_enabled acstor-glance-listener && extras+=(glance)
    is_service_enabled acstor-decision acstor-api && extras+=(decision)
    extras+=(osc)
    setup_develop "$ACSTOR_DIR" "$(IFS=,; echo "${extras[*]}")"
}

acstor_make_accounts() {
    local role
    get_or_create_project "$ACSTOR_PROJECT" "$SERVICE_DOMAIN_NAME" >/dev/null
    get_or_create_user "$ACSTOR_USER" "$SERVICE_PASSWORD" "$SERVICE_DOMAIN_NAME" >/dev/null
    # admin: to read the private images of all projects, and to set protected properties
    for role in admin member service; do
        get_or_create_role "$role" >/dev/null
        get_or_add_user_project_role "$role" "$ACSTOR_USER" "$ACSTOR_PROJECT" \
            "$SERVICE_DOMAIN_NAME" "$SERVICE_DOMAIN_NAME" >/dev/null
    done
    if is_service_enabled acstor-api; then
        get_or_create_service acstor acstor "acstor: chunks, rings and traffic" >/dev/null
        get_or_create_endpoint acstor "$REGION_NAME" "http://$SERVICE_HOST:$ACSTOR_API_PORT" >/dev/null
    fi
}

acstor_configure_agent() {
    local conf=$ACSTOR_CONF_DIR/acstor-agent.conf
    iniset_rpc_backend acstor "$conf"
    iniset "$conf" acstor mount_point "$ACSTOR_MOUNT_POINT"
    iniset "$conf" acstor control_socket "$ACSTOR_CONTROL_SOCKET"
    iniset "$conf" acstor_agent host "$LOCAL_HOSTNAME"
    iniset "$conf" acstor_agent state_dir "$ACSTOR_STATE_DIR/state"
    iniset "$conf" acstor_agent cache_dir "$ACSTOR_STATE_DIR/cache"
    iniset "$conf" acstor_agent cache_limit_bytes "$ACSTOR_CACHE_LIMIT_BYTES"
    iniset "$conf" acstor_agent control_group "$(id -gn "$STACK_USER")"
    iniset "$conf" acstor_agent peer_listen "0.0.0.0:$ACSTOR_PEER_PORT"
    iniset "$conf" acstor_agent peer_address "$ACSTOR_PEER_ADDRESS:$ACSTOR_PEER_PORT"
    iniset "$conf" acstor_agent sources glance
    _acstor_sign_in "$conf" source_glance
}

acstor_configure_glance() {
    local conf=$ACSTOR_CONF_DIR/acstor-glance.conf file
    iniset_rpc_backend acstor "$conf"
    # The plugin runs inside Glance and reads Glance's own files.
    for file in "$conf" "$GLANCE_API_CONF"; do
        iniset "$file" acstor_glance state_dir "$ACSTOR_STATE_DIR/glance"
        _acstor_sign_in "$file" acstor_glance
    done
    iniset "$GLANCE_IMAGE_IMPORT_CONF" image_import_opts image_import_plugins "['acstor_prehash']"
    iniset "$GLANCE_API_CONF" DEFAULT disabled_notifications image.send
}

acstor_configure_decision() {
    local conf=$ACSTOR_CONF_DIR/acstor-decision.conf
    iniset_rpc_backend acstor "$conf"
    iniset "$conf" database connection "$(database_connection_url acstor)"
    iniset "$conf" acstor_decision coordination_url "file://$ACSTOR_STATE_DIR/coordination"
    _acstor_sign_in "$conf" keystone_authtoken
    iniset "$conf" keystone_authtoken www_authenticate_uri "$KEYSTONE_SERVICE_URI"
}

# nova-cpu.conf is made of nova.conf when nova-compute starts, so nova.conf is the one to change;
# then all of Nova's services read it, and they have acstor in their virtualenv.
acstor_configure_nova() {
    iniset "$NOVA_CONF" DEFAULT config_source acstor
    iniset "$NOVA_CONF" acstor driver acstor
    iniset "$NOVA_CONF" acstor control_socket "$ACSTOR_CONTROL_SOCKET"
    iniset "$NOVA_CONF" acstor mount_point "$ACSTOR_MOUNT_POINT"
    iniset "$NOVA_CONF" libvirt images_type acstor
}

acstor_make_folders() {
    local folder
    sudo install -d -o "$STACK_USER" "$ACSTOR_CONF_DIR" "$ACSTOR_STATE_DIR" \
        "$(dirname "$ACSTOR_CONTROL_SOCKET")"
    for folder in state cache glance coordination; do
        mkdir -p "$ACSTOR_STATE_DIR/$folder"
    done
}

acstor_configure() {
    acstor_make_folders
    acstor_make_accounts
    is_service_enabled acstor-agent && acstor_configure_agent
    is_service_enabled acstor-glance-listener && acstor_configure_glance
    is_service_enabled acstor-decision acstor-api && acstor_configure_decision
    if is_service_enabled n-cpu && [[ $ACSTOR_FOR_NOVA == True ]]; then
        acstor_configure_nova
    fi
    return 0
}

# The agent mounts a file system, so it runs as root; nova-compute starts after this phase.
acstor_start_agent() {
    local bin
    bin=$(get_python_exec_prefix)
    run_process acstor-agent \
        "$bin/acstor-agent --config-file $ACSTOR_CONF_DIR/acstor-agent.conf" root root
}

acstor_start() {
    local bin
    bin=$(get_python_exec_prefix)
    if is_service_enabled acstor-decision acstor-api; then
        recreate_database acstor
        "$bin/acstor-decision-manage" --config-file "$ACSTOR_CONF_DIR/acstor-decision.conf" db-sync
    fi
    run_process acstor-decision \
        "$bin/acstor-decision --config-file $ACSTOR_CONF_DIR/acstor-decision.conf"
    run_process acstor-api "$bin/uwsgi --http-socket :$ACSTOR_API_PORT \
--module acstor_decision.wsgi:application --enable-threads --lazy-apps --need-app --die-on-term \
--env ACSTOR_DECISION_CONF=$ACSTOR_CONF_DIR/acstor-decision.conf"
    run_process acstor-glance-listener \
        "$bin/acstor-glance-listener --config-file $ACSTOR_CONF_DIR/acstor-glance.conf"
}

acstor_stop() {
    local service
    for service in $(_acstor_services); do
        stop_process "$service"
    done
    if mountpoint -q "$ACSTOR_MOUNT_POINT"; then
        sudo umount "$ACSTOR_MOUNT_POINT"
    fi
}

acstor_clean() {
    sudo rm -rf --one-file-system "$ACSTOR_CONF_DIR" "$ACSTOR_STATE_DIR"
}

case "$1 ${2:-}" in
    "stack install") acstor_install ;;
    "stack post-config")
        acstor_configure
        acstor_start_agent
        ;;
    "stack extra") acstor_start ;;
    "stack test-config")
        if is_service_enabled tempest; then
            iniset "$TEMPEST_CONFIG" service_available acstor True
        fi
        ;;
    "unstack "*) acstor_stop ;;
    "clean "*) acstor_clean ;;
esac
